#include "textflag.h"

// func spawn(ca *cloneArgs, size uintptr, t *task) (pid, errno uintptr)
// The child comes out on the new stack that ca names, of which nothing but t is
// known, and never returns.
TEXT ·spawn(SB), NOSPLIT, $0-40
	MOVQ	ca+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	t+16(FP), R8 // a register that the system call keeps
	MOVQ	$435, AX // clone3
	SYSCALL
	TESTQ	AX, AX
	JNE	parent
	SUBQ	$16, SP
	MOVQ	R8, 0(SP)
	CALL	·child(SB)
	INT	$3

parent:
	CMPQ	AX, $0xfffffffffffff001
	JLS	made
	NEGQ	AX
	MOVQ	AX, errno+32(FP)
	MOVQ	$0, pid+24(FP)
	RET

made:
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET
