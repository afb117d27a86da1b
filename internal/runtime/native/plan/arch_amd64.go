package plan

// arch is AUDIT_ARCH_X86_64: a plan holds system call numbers.
const arch = 0xC000003E
