package document

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/board"
)

// PolicyFile is an operator's policy file, which may change while it is used.
type PolicyFile struct {
	path string

	mu     sync.Mutex // guards text, policy
	text   []byte
	policy *Policy
}

// OpenPolicy reads a policy file; with path "" there is none, and the PolicyFile is nil. An error names the file, the line and the column.
func OpenPolicy(path string) (*PolicyFile, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // a nil PolicyFile allows everything
	}
	p := &PolicyFile{path: path}
	_, err := p.read()
	return p, err
}

// For returns the limits of s in the present file: nil, which allows everything, if there is no file. While the file
// cannot be read, nobody may have anything, and the error says why.
func (p *PolicyFile) For(s Subject) (*grant.Set, error) {
	if p == nil {
		return nil, nil //nolint:nilnil // everything
	}
	policy, err := p.read()
	if err != nil {
		return nil, err
	}
	return policy.For(s), nil
}

// Board returns the board's rules beyond a program's own owner and namespace in the present file; none while it cannot
// be read.
func (p *PolicyFile) Board() board.Rules {
	if p == nil {
		return nil
	}
	policy, err := p.read()
	if err != nil {
		return nil
	}
	return policy.Board()
}

// Path returns the file's path, "" without a file.
func (p *PolicyFile) Path() string {
	if p == nil {
		return ""
	}
	return p.path
}

func (p *PolicyFile) read() (*Policy, error) {
	text, err := readFile(p.path)
	if err != nil {
		return nil, fmt.Errorf("grants policy: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.policy != nil && bytes.Equal(text, p.text) {
		return p.policy, nil
	}
	policy, err := ParsePolicy(text)
	if err != nil {
		return nil, fmt.Errorf("grants policy %s: %w", p.path, err)
	}
	p.text, p.policy = text, policy
	return policy, nil
}

// readFile reads no more of a regular file than a document may have, and one byte more, so that the parser detects a
// longer one.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, grant.MaxDocument+1))
}
