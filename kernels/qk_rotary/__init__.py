from paper_repro.kernels.qk_rotary.op import (
    RotaryTables,
    published_tables,
    rotate,
    rotate_queries_and_keys,
    textbook_tables,
)

__all__ = ["RotaryTables", "published_tables", "rotate", "rotate_queries_and_keys", "textbook_tables"]
