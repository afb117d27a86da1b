package base

import (
	"fmt"
	"os"

	"golang.org/x/term"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// Terminal returns the file behind v if it is a terminal.
func Terminal(v any) (*os.File, bool) {
	f, ok := v.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// TerminalSize returns the size of the terminal of our output or input, or nil if neither is a
// terminal.
func (a *App) TerminalSize() *longshorev1.Size {
	for _, v := range []any{a.Stdout, a.Stdin} {
		if f, ok := Terminal(v); ok {
			if w, h, err := term.GetSize(int(f.Fd())); err == nil {
				return &longshorev1.Size{Cols: uint32(w), Rows: uint32(h)}
			}
		}
	}
	return nil
}

// RawInput puts the terminal of our input into raw mode, and returns a function that restores it.
func (a *App) RawInput() (restore func(), err error) {
	f, ok := Terminal(a.Stdin)
	if !ok {
		return func() {}, nil
	}
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set the terminal raw: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }, nil
}
