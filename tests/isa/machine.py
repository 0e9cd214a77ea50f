"""One x86-64 CPU and its memory: page tables, descriptors and the state in which a user program starts.

Physical and virtual addresses are equal. The first 256 KiB belong to the "kernel": its only code is one stub per way
into it, which executes WBINVD (the emulator calls Python at that instruction) and returns to the program.
"""

import ctypes
import mmap
import os
import struct
import traceback

import bochscpu
import bochscpu.cpu
import bochscpu.memory

PAGE = 4096
PML4, PDPT, PT, PDS, GIB_MAX = 0x10000, 0x11000, 0x13000, 0x30000, 16
GDT, IDT, TSS, STUBS, KERNEL_STACK, USER = 0x14000, 0x15000, 0x16000, 0x17000, 0x28000, 0x40000
SYSCALL_STUB, VECTOR_STUBS, VECTORS, STUB_BYTES = STUBS, STUBS + 0x100, 32, 16
WBINVD, IRETQ, SYSRETQ = b"\x0f\x09", b"\x48\xcf", b"\x48\x0f\x07"
MAP_NORESERVE = 0x4000


class Memory:
    """Memory of whole GiB; pages are the host's only when touched."""

    def __init__(self, gib):
        if not 1 <= gib <= GIB_MAX:
            raise ValueError(f"memory is 1 to {GIB_MAX} GiB, not {gib}")
        self.size = gib << 30
        self.buffer = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))

    def read(self, at, length):
        return self.buffer[at : at + length]

    def write(self, at, data):
        self.buffer[at : at + len(data)] = data

    def words(self, at, *values):
        self.write(at, struct.pack(f"<{len(values)}Q", *values))

    def word(self, at):
        return struct.unpack_from("<Q", self.buffer, at)[0]

    def text(self, at):
        return self.buffer[at : self.buffer.find(b"\0", at)].decode()


def descriptor(kind, privilege, long_mode):
    bits = 0xFFFF | kind << 40 | 1 << 44 | privilege << 45 | 1 << 47 | 0xF << 48 | 1 << 55
    return bits | (1 << 53 if long_mode else 1 << 54)


def write_tables(memory):
    """Maps everything onto itself, the kernel's pages for the kernel only, and fills GDT, IDT and TSS."""
    present, user, huge = 3, 7, 0x87
    memory.words(PML4, PDPT | user)
    gib = memory.size >> 30
    memory.words(PDPT, *((PDS + i * PAGE) | user for i in range(gib)))
    # Pages of 2 MiB: not every model has those of 1 GiB.
    memory.words(PDS, PT | user, *((i << 21) | huge for i in range(1, 512 * gib)))
    pages = range(0x10, 512)
    memory.words(PT + 8 * 0x10, *((p * PAGE) | (user if p * PAGE >= USER else present) for p in pages))
    tss = 0x67 | (TSS & 0xFFFFFF) << 16 | 0xB << 40 | 1 << 47 | (TSS >> 24) << 56
    code, data = 0xB, 3
    # The order that SYSCALL and SYSRET want: kernel code 08 and data 10, user data 18 and code 20.
    memory.words(GDT, 0, descriptor(code, 0, True), descriptor(data, 0, False), descriptor(data, 3, False))
    memory.words(GDT + 0x20, descriptor(code, 3, True), tss, 0)
    memory.words(TSS + 4, KERNEL_STACK)
    memory.write(SYSCALL_STUB, WBINVD + SYSRETQ)
    for vector in range(VECTORS):
        stub = VECTOR_STUBS + vector * STUB_BYTES
        memory.write(stub, WBINVD + IRETQ)
        memory.write(IDT + 16 * vector, struct.pack("<HHBBHII", stub & 0xFFFF, 8, 0, 0x8E, stub >> 16, 0, 0))


def segment(selector, code):
    s, flags = bochscpu.Segment(), bochscpu.cpu.SegmentFlags()
    flags.P = flags.S = flags.R = flags.A = flags.G = True
    flags.DPL = 3
    if code:
        flags.E = flags.L = True
    else:
        flags.W = flags.DB = True
    s.attr, s.limit, s.base, s.present, s.selector = int(flags), 0xFFFFFFFF, 0, True, selector
    return s


def table(base, limit):
    t = bochscpu.GlobalSegment()
    t.base, t.limit = base, limit
    return t


def user_state(entry, stack, amx):
    """Long mode in ring 3 with SSE, AVX, AVX-512 and, if asked for, tile state switched on."""
    s = bochscpu.State()
    bochscpu.cpu.set_long_mode(s)
    s.cr3, s.cr0, s.cr4, s.efer = PML4, 0x80010033, 0x506A0 | 0x10000, 0xD01
    s.xcr0 = 0xE7 | (0x60000 if amx else 0)
    s.cs, s.ss = segment(0x23, True), segment(0x1B, False)
    for name in ("ds", "es", "fs", "gs"):
        setattr(s, name, segment(0, False))
    s.gdtr, s.idtr = table(GDT, 0x37), table(IDT, 16 * VECTORS - 1)
    task = bochscpu.Segment()
    task.base, task.limit, task.selector, task.present, task.attr = TSS, 0x67, 0x28, True, 0x8B
    s.tr = task
    s.star, s.lstar, s.sfmask = 0x10 << 48 | 0x8 << 32, SYSCALL_STUB, 0x47700
    s.rflags, s.mxcsr, s.mxcsr_mask, s.fpcw = 0x202, 0x1F80, 0xFFFF, 0x37F
    s.rip, s.rsp = entry, stack
    return s


def run(memory, state, on_syscall, on_exception):
    """Runs until a handler ends the process. Handlers get the CPU, and the exception's vector."""

    def guarded(handler):
        # Nothing may be raised through the emulator's own frames.
        def call(*arguments):
            try:
                handler(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(70)

        return call

    @guarded
    def entered(session, _cpu_id, _what):
        at = session.cpu.rip & ~(STUB_BYTES - 1)
        if at == SYSCALL_STUB:
            on_syscall(session.cpu)
        else:
            on_exception(session.cpu, (at - VECTOR_STUBS) // STUB_BYTES)

    @guarded
    def missing(physical):
        if physical >= memory.size:
            raise MemoryError(f"address {physical:#x} is outside of the emulated memory (BX_MEM_GB)")
        page = physical & ~(PAGE - 1)
        bochscpu.memory.page_insert(page, memory.host + page)

    session, hook = bochscpu.Session(), bochscpu.Hook()
    session.missing_page_handler = missing
    session.cpu.state = state
    hook.cache_cntrl = entered
    session.run([hook])
