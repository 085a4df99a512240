"""Tokens of images, sound, video and documents, by each provider's published rules, never by their base64.

Sources, by provider:

Gemini      ai.google.dev/gemini-api/docs/tokens and /image-understanding, /media-resolution, /video-understanding,
            /document-processing
OpenAI      platform.openai.com/docs/guides/images-vision ("Calculating costs")
Anthropic   platform.claude.com/docs/en/build-with-claude/vision ("Resolution and token cost") and /pdf-support
"""

from __future__ import annotations

import math
import re
import struct
from typing import NamedTuple

from aether_context.tokens.model_limits import bare_model_name

UNKNOWN_IMAGE_TOKENS = 2_000
"""Tokens of an image whose size in pixels is unknown, and of data of an unknown kind."""

_PLAIN_SOUND = ("audio/wav", "audio/x-wav", "audio/wave", "audio/l16", "audio/pcm", "audio/aiff", "audio/x-aiff")
_HEADER_BYTES = 1 << 18


class Tiles(NamedTuple):
    """``base`` tokens for an image, and ``tile`` for each square of 512 pixels.

    The image is scaled down to fit into 2,048 by 2,048 pixels first, and then to a shorter side of 768.
    """

    base: int
    tile: int

    def tokens(self, width: int, height: int) -> int:
        scale = min(1.0, 2_048 / max(width, height))
        scale *= min(1.0, 768 / (min(width, height) * scale))
        return self.base + self.tile * math.ceil(round(width * scale) / 512) * math.ceil(round(height * scale) / 512)


class Patches(NamedTuple):
    """``percent`` of the number of squares of 32 pixels, after scaling the image down to ``most_pixels`` on its longer
    side and to ``most`` squares."""

    percent: int
    most: int = 1_536
    most_pixels: int = 2_048

    def tokens(self, width: int, height: int) -> int:
        scale = min(1.0, self.most_pixels / max(width, height))
        fitted_width, fitted_height = width * scale, height * scale
        if math.ceil(fitted_width / 32) * math.ceil(fitted_height / 32) > self.most:
            scale = math.sqrt(32 * 32 * self.most / (fitted_width * fitted_height))
            columns, rows = fitted_width * scale / 32, fitted_height * scale / 32
            scale *= min(math.floor(columns) / columns, math.floor(rows) / rows) or 1.0
            fitted_width, fitted_height = fitted_width * scale, fitted_height * scale
        patches = min(self.most, math.ceil(round(fitted_width, 6) / 32) * math.ceil(round(fitted_height, 6) / 32))
        return math.ceil(patches * self.percent / 100)


OPENAI_IMAGES: tuple[tuple[str, Tiles | Patches], ...] = (
    (r"gpt-4o-mini", Tiles(2_833, 5_667)),
    (r"(?:gpt-5|gpt-4\.1).*-mini|codex-mini", Patches(162)),
    (r"(?:gpt-5|gpt-4\.1).*-nano", Patches(246)),
    (r"o4-mini", Patches(172)),
    (r"gpt-5\.[23]", Patches(120)),
    (r"gpt-5\.4", Patches(120, 2_500)),
    (r"gpt-(?:5\.[5-9]|[6-9])", Patches(120, 10_000, 6_000)),
    (r"gpt-5", Tiles(70, 140)),
    (r"o[1-9]", Tiles(75, 150)),
    (r"computer-use", Tiles(65, 129)),
    (r"", Tiles(85, 170)),
)
"""How OpenAI's models count images at the detail that they choose; the first pattern that matches a bare name."""


def media_tokens(
    mime_type: str | None, size_bytes: int, *, family: str, model: str = "", data: bytes | None = None
) -> int:
    """Tokens of a piece of media for a model of the family (a name that `family_of` returns).

    Seconds, and without `data` pixels and pages, are estimated, rather too high than too low. Where the size is unknown
    as well, a minute or ten pages are assumed. It never raises, whatever the data.

    Args:
        mime_type: where it is None or empty, it is detected from the data's first bytes.
        size_bytes: size of the media itself, 0 where it is unknown.
        family: decides the tokens of an image, a page and a second.
        model: distinguishes OpenAI's models; empty counts as GPT-4o.
        data: the media; None where only its address is known.
    """
    media_type = (mime_type or "").split(";")[0].strip().lower() or sniffed(data)
    families = (family,) if family not in ("generic", "xai") else ("gemini", "gemini-3", "openai", "claude-4.7")
    if media_type.startswith("image/"):
        size = image_size(data)
        return max(_image(*size, name, model) for name in families) if size else UNKNOWN_IMAGE_TOKENS
    if media_type.startswith(("audio/", "video/")):
        is_video = media_type.startswith("video/")
        # 500 kbit/s, a low rate for 480 lines; 16,000 samples of 16 bits a second; 32 kbit/s, a low rate for
        # compressed speech: a file rarely lasts longer than at these rates.
        bytes_a_second = 62_500 if is_video else 32_000 if media_type in _PLAIN_SOUND else 4_000
        seconds = size_bytes / bytes_a_second if size_bytes > 0 else 60
        # Tokens a second. Gemini: sound 32; video about 300 (258 a frame, one frame a second, and its sound), from
        # version 3 on 70 a frame. OpenAI: sound 10. No provider accepts other pairs; they count as Gemini's.
        rates = {"gemini-3": 110} if is_video else {"openai": 10}
        rate = max(rates.get(name, 300 if is_video else 32) for name in families)
        return max(1, math.ceil(seconds * rate))
    if media_type == "application/pdf":
        # By the file's page tree or, where that is compressed, one page for each 25,000 bytes. Every provider refuses
        # documents of more than 1,000 pages.
        pages = pdf_pages(data) or (math.ceil(size_bytes / 25_000) if size_bytes > 0 else 10)
        # Tokens a page: Gemini 258, from version 3 on 560. Anthropic 1,500 to 3,000, the page's image included here.
        # OpenAI sends text and image and publishes no figure: an image of two by three tiles and 900 of text.
        page_tokens = {"gemini": 258, "gemini-3": 560, "openai": 2_005}
        return min(pages, 1_000) * max(page_tokens.get(name, 3_000) for name in families)
    if media_type.startswith("text/") or media_type.endswith(("json", "xml", "yaml", "javascript")):
        return size_bytes // 3 + 1
    return UNKNOWN_IMAGE_TOKENS


def pdf_pages(data: bytes | None) -> int:
    """The pages that a PDF's page tree names; 0 where that is compressed."""
    return len(re.findall(rb"/Type\s*/Page(?![a-zA-Z])", data)) if data else 0


def _image(width: int, height: int, family: str, model: str) -> int:
    if family == "gemini-3":
        return 1_120
    if family == "openai":
        rule = next(rule for pattern, rule in OPENAI_IMAGES if re.match(pattern, bare_model_name(model)))
        return rule.tokens(width, height)
    if family.startswith("claude"):
        # One for each patch of 28 pixels after fitting the longer side, and no more than the limit of the model's tier.
        most_pixels, most_tokens = (1_568, 1_568) if family == "claude" else (2_576, 4_784)
        scale = min(1.0, most_pixels / max(width, height))
        return min(most_tokens, math.ceil(width * scale / 28) * math.ceil(height * scale / 28))
    # 258 where both sides are at most 384 pixels, else 258 a tile, tiles being two thirds of the shorter side.
    # Departure: tiles are at least 256 pixels, and at most nine count, near the 2,048 documented for pan and scan.
    if width <= 384 and height <= 384:
        return 258
    tile = max(256, int(min(width, height) / 1.5))
    return 258 * min(9, math.ceil(width / tile) * math.ceil(height / tile))


def sniffed(data: bytes | None) -> str:
    """The media type of data by its first bytes; empty where it is unknown."""
    head = data[:12] if data else b""
    if head[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12], "")
    signatures = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg", b"GIF8": "image/gif", b"%PDF": "application/pdf"}
    return next((media_type for signature, media_type in signatures.items() if head.startswith(signature)), "")


def image_size(data: bytes | None) -> tuple[int, int] | None:
    """Width and height in pixels, from the header of a PNG, JPEG, GIF or WebP; None where they cannot be read."""
    try:
        width, height = _header_size(data[:_HEADER_BYTES] if data else b"")
    except (struct.error, IndexError):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _header_size(head: bytes) -> tuple[int, int]:
    media_type = sniffed(head)
    if media_type == "image/png":
        return struct.unpack_from(">II", head, 16)
    if media_type == "image/gif":
        return struct.unpack_from("<HH", head, 6)
    if media_type == "image/jpeg":
        position = 2
        while head[position] == 0xFF:  # segments, up to the first start of a frame: C0 to CF without C4, C8 and CC
            marker = head[position + 1]
            if marker == 0xFF:
                position += 1
            elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                height, width = struct.unpack_from(">HH", head, position + 5)
                return width, height
            else:
                position += 2 + struct.unpack_from(">H", head, position + 2)[0]
    if media_type == "image/webp":
        chunk = head[12:16]
        if chunk == b"VP8X":
            return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
        if chunk == b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        if chunk == b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
    return 0, 0
