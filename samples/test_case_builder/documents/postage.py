"""What a letter costs. The code that the sample tests against the tariff; it has one mistake."""


def postage(grams: int, abroad: bool = False) -> int:
    """The price of a letter in cents.

    Raises:
        ValueError: such a letter is not carried.
    """
    for heaviest, cents in ((20, 95), (50, 110)):
        if 0 < grams <= heaviest:
            return cents * (2 if abroad else 1)
    if 50 < grams < 500:
        return 180 * (2 if abroad else 1)
    raise ValueError(f"a letter of {grams} g is not carried")
