#!/usr/bin/env python3
"""Runs one static x86-64 Linux program on an emulated CPU (README.md): bxrun.py PROGRAM [ARGUMENT...]

BX_MODEL  the CPU, default sapphire_rapids        BX_AMX=1    with AMX tiles and bf16
BX_STATS  counts instructions (to this file, or to standard error with 1)
BX_TRACE  prints system calls                     BX_MEM_GB   memory, default 4
"""

import ctypes
import json
import os
import struct
import sys

import linux
import machine

NAMES = {0: "#DE", 3: "#BP", 6: "#UD", 7: "#NM", 13: "#GP", 14: "#PF", 16: "#MF", 17: "#AC", 19: "#XM"}
INVALID_OPCODE = 6
WITH_ERROR_CODE = (8, 10, 11, 12, 13, 14, 17, 21)
REGISTERS = "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()
AMX_KINDS = ("tile load", "tile store", "TDPBF16PS", "tile zero", "tile configuration")
OWN = ("LD_PRELOAD", "BX_MODEL", "BX_AMX", "BX_STATS", "BX_TRACE", "BX_MEM_GB")


class Emulation:
    """Handlers of the two ways into the kernel."""

    def __init__(self, memory, process, amx):
        self.memory, self.process = memory, process
        self.shim = ctypes.CDLL(None)  # LD_PRELOAD put it there
        self.step = self.shim.amx_step if amx else None
        if amx:
            self.step.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64 * 16)

    def on_syscall(self, cpu):
        try:
            self.process.syscall(cpu)
        except SystemExit as e:
            self.end(e.code)

    def on_exception(self, cpu, vector):
        frame = cpu.rsp + 8 * (vector in WITH_ERROR_CODE)
        rip = self.memory.word(frame)
        if vector == INVALID_OPCODE and self.step:
            values = [getattr(cpu, r) for r in REGISTERS]
            values[4] = self.memory.word(frame + 24)
            length = self.step(self.memory.host, rip, (ctypes.c_uint64 * 16)(*values))
            if length:
                self.memory.words(frame, rip + length)
                return
        name, code = NAMES.get(vector, f"exception {vector}"), self.memory.read(rip, 12).hex(" ")
        print(f"isa emulator: {name} at {rip:#x}, instruction {code}, cr2 {cpu.cr2:#x}", file=sys.stderr)
        self.end(132 if vector == INVALID_OPCODE else 139)

    def end(self, code):
        stats = os.environ.get("BX_STATS")
        if stats:
            text = json.dumps(self.counts(), indent=1)
            if stats == "1":
                print(text, file=sys.stderr)
            else:
                with open(stats, "w") as file:
                    file.write(text)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def counts(self):
        """Executed instructions by Bochs' opcode names, tile instructions, and accesses to memory."""
        counted, count = self.shim.counted, ctypes.c_uint64()
        counted.restype = ctypes.c_char_p
        opcodes, op = {}, 0
        while (name := counted(op, ctypes.byref(count))) is not None:
            if count.value:
                opcodes[name.decode().removeprefix("BX_IA_") or str(op)] = count.value
            op += 1
        tiles = dict(zip(AMX_KINDS, (ctypes.c_uint64 * 5).in_dll(self.shim, "amx_counts")))
        # Bochs decodes each as an invalid opcode before amx.c executes it.
        opcodes.pop("ERROR", None)
        accesses = (ctypes.c_uint64 * 4)()
        self.shim.accesses(accesses)
        names = ("loads", "bytes loaded", "stores", "bytes stored")
        return {"opcodes": opcodes, "tiles": tiles, "memory": dict(zip(names, accesses))}


def main():
    if len(sys.argv) < 2 or struct.calcsize("P") != 8:
        sys.exit(__doc__)
    amx, trace = bool(os.environ.get("BX_AMX")), bool(os.environ.get("BX_TRACE"))
    environment = {k: v for k, v in os.environ.items() if k not in OWN}
    memory = machine.Memory(int(os.environ.get("BX_MEM_GB", "4")))
    machine.write_tables(memory)
    try:
        process = linux.Process(memory, sys.argv[1:], environment, amx, trace)
    except (OSError, linux.Unsupported) as e:
        sys.exit(f"isa emulator: {e}")
    emulation = Emulation(memory, process, amx)
    state = machine.user_state(process.entry, process.stack, amx)
    machine.run(memory, state, emulation.on_syscall, emulation.on_exception)
    sys.exit("isa emulator: the CPU stopped without an exit call")


main()
