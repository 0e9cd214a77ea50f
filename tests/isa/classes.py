"""Prints the instruction counts of bxrun.py by class: classes.py COUNTS [COUNTS_TO_SUBTRACT]."""

import collections
import json
import re
import sys

# The first pattern that matches an opcode of Bochs names its class. E, W and M in an operand may be memory; what was
# read and written is counted apart.
CLASSES = [
    ("VDPBF16PS", r"VDPBF16PS"),
    ("FMA packed", r"VFN?M(ADD|SUB)\w*P[SDH]_"),
    ("FMA scalar", r"VFN?M(ADD|SUB)\w*S[SDH]_"),
    ("bf16 conversion", r"BF16"),
    ("conversion", r"V?CVT"),
    ("arithmetic packed", r"V?(ADD|SUB|MUL|DIV|MIN|MAX|SQRT|RCP14|RSQRT14|SCALEF)P[SDH]_"),
    ("arithmetic scalar", r"V?(ADD|SUB|MUL|DIV|MIN|MAX|SQRT|RCP14|RSQRT14|SCALEF|U?COMI)S[SDH]_"),
    ("broadcast", r"VP?BROADCAST"),
    ("shuffle", r"V?P?(SHUF|PERM|UNPCK|UNPCKL|UNPCKH|BLEND|ALIGN|EXTRACT|INSERT|PACK|MOVZX|MOVSX)"),
    ("vector move", r"V?MOV(APS|APD|UPS|UPD|DQA|DQU|NT|SS|SD|LPS|HPS|LHPS|HLPS|D_|Q_|DDUP|SLDUP|SHDUP)"),
    ("mask register", r"K[A-Z]+[BWDQ]_|K(UNPCK|TEST|ORTEST)"),
    ("vector integer", r"VP[A-Z]|P(ADD|SUB|MUL|AND|OR|XOR|SLL|SRL|SRA|CMP|MAX|MIN|MOVMSK|TEST)[A-Z]*_"),
    ("vector logic", r"V?(AND|ANDN|OR|XOR)P[SD]_"),
    ("branch", r"J[A-Z]+_|CALL|RET|LOOP"),
    ("other", r""),
]
REGISTERS = (("512 bits", "EVEX_"), ("256 bits", "V256_"))


def classed(opcodes):
    counts = collections.Counter()
    for name, count in opcodes.items():
        plain = re.sub(r"^(EVEX_|V128_|V256_)", "", name)
        counts[next(c for c, pattern in CLASSES if re.match(pattern, plain))] += count
    return counts


def main():
    read = lambda path: json.load(open(path))
    data, *others = [read(path) for path in sys.argv[1:]]
    total = collections.Counter(classed(data["opcodes"]))
    tiles, memory = collections.Counter(data["tiles"]), collections.Counter(data["memory"])
    for other in others:
        total.subtract(classed(other["opcodes"]))
        tiles.subtract(other["tiles"])
        memory.subtract(other["memory"])
    order = [c for c, _ in CLASSES]
    rows = [*tiles.items(), *((c, total[c]) for c in order), ("all", sum(total.values()) + sum(tiles.values()))]
    for name, count in [*rows, *memory.items()]:
        if count:
            print(f"{count:>16,}  {name}")


main()
