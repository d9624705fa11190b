"""What each instruction does: from its first words to a function that makes it ready to run.

Meanings are those of the PTX ISA, version 9.0, §9.7. One more instruction is one more function in the module
of its kind, entered in the table (machine/table.py) with its section; the longest name that an instruction
starts with is its own: wmma.store before wmma.
"""

from ptxsan.isa import (  # noqa: F401 (each fills the table)
    bulk,
    calls,
    conversion,
    floating,
    fragments,
    images,
    integer,
    maps,
    mbarrier,
    memory,
    mma,
    multimem,
    predicates,
    remote,
    tcgen05,
    tensor_memory,
    warp,
    wgmma,
    wmma,
)
