package confine

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestFilterCompiles(t *testing.T) {
	prog := compileFilter(auditArch, deniedCalls(), []uint32{unix.AF_INET, unix.AF_INET6}, true)
	if len(prog) > 4096 {
		t.Errorf("%d instructions are more than the kernel takes", len(prog))
	}
	for i, ins := range prog {
		if ins.Code&7 == unix.BPF_JMP && (i+1+int(ins.Jt) >= len(prog) || i+1+int(ins.Jf) >= len(prog)) {
			t.Errorf("instruction %d jumps out of the program", i)
		}
	}
}
