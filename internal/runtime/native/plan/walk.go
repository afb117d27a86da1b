package plan

import "unsafe"

// Step is one operation, decoded for reading.
type Step struct {
	Op
	Title string // its name
	blob  []byte
}

// Text returns the NUL-terminated string that argument i points to.
func (s Step) Text(i int) string { return cstring(s.blob, uint32(s.A[i])) }

// Word returns the 64-bit word at index n of the data that argument i points to.
func (s Step) Word(i, n int) uint64 {
	return *(*uint64)(unsafe.Pointer(&s.blob[s.A[i]+8*uint64(n)]))
}

// Points reports whether argument i is a pointer into the plan.
func (s Step) Points(i int) bool { return s.Ptrs&(1<<i) != 0 }

// Steps decodes a plan's operations. It neither runs nor changes the plan.
func Steps(blob []byte) ([]Step, error) {
	if err := Check(blob); err != nil {
		return nil, err
	}
	h, err := header(blob)
	if err != nil {
		return nil, err
	}
	ops := opsOf(blob, h)
	steps := make([]Step, len(ops))
	for i, o := range ops {
		steps[i] = Step{o, cstring(blob, o.Name), blob}
	}
	return steps, nil
}
