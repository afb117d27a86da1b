#include "textflag.h"

// func exitHandler() uintptr
TEXT ·exitHandler(SB), NOSPLIT, $0-8
	MOVD $·exit(SB), R0
	MOVD R0, ret+0(FP)
	RET

// exit is a signal handler: exit_group(128 + the signal's number).
TEXT ·exit(SB), NOSPLIT|NOFRAME, $0
	ADD  $128, R0
	MOVD $94, R8
	SVC
	BRK
