"""Text made shorter, taken apart and read leniently: extracts, entities, spellings."""
