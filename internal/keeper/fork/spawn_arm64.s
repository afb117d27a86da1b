#include "textflag.h"

// func spawn(ca *cloneArgs, size uintptr, t *task) (pid, errno uintptr)
// The child comes out on the new stack that ca names, of which nothing but t is
// known, and never returns.
TEXT ·spawn(SB), NOSPLIT|NOFRAME, $0-40
	MOVD	ca+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	t+16(FP), R9 // a register that the system call keeps
	MOVD	$435, R8 // clone3
	SVC
	CBNZ	R0, parent
	SUB	$32, RSP
	MOVD	R9, 8(RSP)
	CALL	·child(SB)
	BRK

parent:
	CMN	$4095, R0
	BCC	made
	NEG	R0, R0
	MOVD	R0, errno+32(FP)
	MOVD	ZR, pid+24(FP)
	RET

made:
	MOVD	R0, pid+24(FP)
	MOVD	ZR, errno+32(FP)
	RET
