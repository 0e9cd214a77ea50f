"""What a single-threaded static Linux program needs of its kernel: a loader and some system calls.

Deliberately absent: threads (clone fails with EAGAIN), signals, and memory that is ever given back.
"""

import errno
import os
import struct
import sys
import time

BIAS = 0x10000000  # where position-independent programs go
PAGE = 4096
MIB = 1 << 20
ARCH_SET_FS, ARCH_GET_FS = 0x1002, 0x1003
ARCH_GET_XCOMP_SUPP, ARCH_GET_XCOMP_PERM, ARCH_REQ_XCOMP_PERM = 0x1021, 0x1022, 0x1023
XFEATURES, TILE_DATA = 0x602E7, 18
# AT_ codes of <elf.h>
PHDR, PHENT, PHNUM, PAGESZ, BASE, ENTRY, PLATFORM, HWCAP, CLKTCK, SECURE, RANDOM, HWCAP2, EXECFN, MINSIGSTKSZ = (
    3, 4, 5, 6, 7, 9, 15, 16, 17, 23, 25, 26, 31, 51,
)  # fmt: skip


def c_int(register):
    """The signed 32 bits of a register."""
    return ((register & 0xFFFFFFFF) ^ 1 << 31) - (1 << 31)


class Unsupported(Exception):
    """The program is not one that can run here."""


class Process:
    """A loaded program; `entry` and `stack` are where it starts."""

    def __init__(self, memory, argv, environment, amx, trace):
        self.memory, self.amx, self.trace = memory, amx, trace
        self.mmap_top = memory.size - 64 * MIB
        headers, count, size = self.load(argv[0])
        self.stack = self.start_stack(argv, environment, headers, count, size)

    def load(self, path):
        with open(path, "rb") as file:
            elf = file.read()
        kind = struct.unpack_from("<H", elf, 16)[0]
        if elf[:4] != b"\x7fELF" or kind not in (2, 3):
            raise Unsupported(f"{path} is no ELF program")
        entry, table = struct.unpack_from("<QQ", elf, 24)
        size, count = struct.unpack_from("<HH", elf, 54)
        bias, end, headers = (BIAS if kind == 3 else 0), 0, 0
        for i in range(count):
            p_type, _, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", elf, table + i * size)
            if p_type == 3:
                raise Unsupported(f"{path} is dynamic; build it with -C target-feature=+crt-static")
            if p_type == 1:
                self.memory.write(bias + address, elf[offset : offset + in_file])
                end = max(end, bias + address + in_memory)
                if offset <= table < offset + in_file:
                    headers = bias + address + table - offset
        self.entry = bias + entry
        self.break_min = self.break_now = (end + PAGE - 1) & -PAGE
        return headers, count, size

    def start_stack(self, argv, environment, headers, count, size):
        top = self.memory.size - MIB

        def push(data):
            nonlocal top
            top -= len(data)
            self.memory.write(top, data)
            return top

        random, platform, name = push(bytes(range(16))), push(b"x86_64\0"), push(argv[0].encode() + b"\0")
        arguments = [push(a.encode() + b"\0") for a in argv]
        variables = [push(f"{k}={v}".encode() + b"\0") for k, v in environment.items()]
        auxiliary = {
            PHDR: headers, PHENT: size, PHNUM: count, PAGESZ: PAGE, BASE: 0, ENTRY: self.entry, SECURE: 0,
            RANDOM: random, EXECFN: name, PLATFORM: platform, HWCAP: 0x178BFBFF, CLKTCK: 100, HWCAP2: 2,
            MINSIGSTKSZ: 0x2A00, 0: 0,
        }  # fmt: skip
        words = [len(argv), *arguments, 0, *variables, 0, *(x for pair in auxiliary.items() for x in pair)]
        stack = (top - 8 * len(words)) & -16
        self.memory.words(stack, *words)
        return stack

    def syscall(self, cpu):
        """Executes the system call in the registers and sets its result; exit calls raise SystemExit."""
        number, arguments = cpu.rax, (cpu.rdi, cpu.rsi, cpu.rdx, cpu.r10, cpu.r8, cpu.r9)
        handler = CALLS.get(number)
        try:
            if handler is not None:
                result = handler(self, cpu, *arguments)
            else:
                result = 0 if number in IGNORED else -errno.ENOSYS
        except OSError as e:
            result = -e.errno
        if self.trace:
            print(f"syscall {number} {[hex(a) for a in arguments]} = {result:#x}", file=sys.stderr)
        cpu.rax = result & (1 << 64) - 1

    def read(self, _cpu, fd, at, length, *_):
        data = os.read(c_int(fd), length)
        self.memory.write(at, data)
        return len(data)

    def write(self, _cpu, fd, at, length, *_):
        return os.write(c_int(fd), self.memory.read(at, length))

    def writev(self, _cpu, fd, vectors, count, *_):
        parts = ((self.memory.word(v), self.memory.word(v + 8)) for v in range(vectors, vectors + 16 * count, 16))
        return sum(os.write(c_int(fd), self.memory.read(at, length)) for at, length in parts)

    def openat(self, _cpu, _dir, path, flags, *_):
        return os.open(self.memory.text(path), flags & 0xFFF, 0o644)

    def close(self, _cpu, fd, *_):
        if c_int(fd) not in (0, 1, 2):
            os.close(c_int(fd))
        return 0

    def mmap(self, _cpu, at, length, _protection, flags, *_):
        fixed, anonymous = flags & 0x10, flags & 0x20
        if not anonymous:
            return -errno.ENODEV
        length = (length + PAGE - 1) & -PAGE
        if fixed:
            self.memory.write(at, bytes(length))
            return at
        if length > self.mmap_top - self.break_now:
            return -errno.ENOMEM
        self.mmap_top -= length  # never reused, so it is still zero
        return self.mmap_top

    def brk(self, _cpu, at, *_):
        if self.break_min <= at < self.mmap_top:
            if at < self.break_now:  # given back: calloc relies on zeros when it grows again
                self.memory.write(at, bytes(self.break_now - at))
            self.break_now = at
        return self.break_now

    def poll(self, _cpu, files, count, *_):
        for i in range(count):
            self.memory.write(files + 8 * i + 6, b"\0\0")
        return 0

    def arch_prctl(self, cpu, what, value, *_):
        if what == ARCH_SET_FS:
            segment = cpu.fs
            segment.base = value
            cpu.fs = segment
        elif what == ARCH_GET_FS:
            self.memory.words(value, cpu.fs.base)
        elif what in (ARCH_GET_XCOMP_SUPP, ARCH_GET_XCOMP_PERM):
            self.memory.words(value, XFEATURES)
        elif what == ARCH_REQ_XCOMP_PERM:
            return 0 if self.amx and value == TILE_DATA else -errno.EOPNOTSUPP
        else:
            return -errno.EINVAL
        return 0

    def clock_gettime(self, _cpu, clock, at, *_):
        self.memory.words(at, *divmod(time.clock_gettime_ns(clock), 10**9))
        return 0

    def getrandom(self, _cpu, at, length, *_):
        self.memory.write(at, bytes((i * 167 + 13) & 255 for i in range(length)))  # every run is the same
        return length

    def sched_getaffinity(self, _cpu, _pid, _bytes, at, *_):
        self.memory.words(at, 1)
        return 8

    def prlimit(self, _cpu, _pid, _what, _new, old, *_):
        if old:
            self.memory.words(old, 8 * MIB, (1 << 64) - 1)
        return 0

    def process_id(self, *_):
        return 1000

    def clone(self, *_):
        return -errno.EAGAIN  # Rust's test harness then runs tests on the main thread

    def futex(self, _cpu, _at, operation, *_):
        return -errno.EAGAIN if operation & 0x7F == 0 else 0  # nobody could wake a waiter

    def raised(self, _cpu, _group, _thread, signal, *_):
        raise SystemExit(128 + signal)

    def exit(self, _cpu, code, *_):
        raise SystemExit(code & 0xFF)


CALLS = {
    0: Process.read, 1: Process.write, 3: Process.close, 7: Process.poll, 9: Process.mmap, 12: Process.brk,
    20: Process.writev, 39: Process.process_id, 56: Process.clone, 60: Process.exit, 158: Process.arch_prctl,
    186: Process.process_id, 202: Process.futex, 204: Process.sched_getaffinity, 218: Process.process_id,
    228: Process.clock_gettime, 231: Process.exit, 234: Process.raised, 257: Process.openat, 302: Process.prlimit,
    318: Process.getrandom,
}  # fmt: skip
# mprotect, munmap, sigaction, sigprocmask, ioctl, sched_yield, madvise, fcntl, prctl, sigaltstack, set_robust_list
IGNORED = {10, 11, 13, 14, 16, 24, 28, 72, 131, 157, 273}
