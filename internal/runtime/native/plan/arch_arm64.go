package plan

// arch is AUDIT_ARCH_AARCH64: a plan holds system call numbers.
const arch = 0xC00000B7
