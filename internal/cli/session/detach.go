package session

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// DetachKeys are the keys that detach from a terminal, as bytes of its input. The zero value is Ctrl-P, Ctrl-Q.
type DetachKeys struct {
	keys string
	text string
}

var _ pflag.Value = (*DetachKeys)(nil)

// usualDetachKeys are Ctrl-P, Ctrl-Q.
const usualDetachKeys = "\x10\x11"

// errDetachKeys is the error about keys that cannot be parsed.
var errDetachKeys = errors.New("use single characters and ctrl- with a letter or one of @ [ \\ ] ^ _, separated by commas, such as ctrl-p,ctrl-q")

// Define defines the flag that sets the keys.
func (d *DetachKeys) Define(fl *pflag.FlagSet) {
	fl.Var(d, "detach-keys", "keys that detach from a terminal, such as ctrl-a,d (default ctrl-p,ctrl-q)")
}

// Set parses keys that are separated by commas.
func (d *DetachKeys) Set(s string) error {
	if s == "" {
		*d = DetachKeys{}
		return nil
	}
	var keys []byte
	for key := range strings.SplitSeq(s, ",") {
		control, isControl := strings.CutPrefix(key, "ctrl-")
		switch {
		case isControl && len(control) == 1 && 'a' <= control[0] && control[0] <= 'z':
			keys = append(keys, control[0]-'a'+1)
		case isControl && len(control) == 1 && strings.Contains(`@[\]^_`, control):
			keys = append(keys, control[0]-'@')
		case len(key) == 1 && ' ' < key[0] && key[0] < 0x7f:
			keys = append(keys, key[0])
		default:
			return fmt.Errorf("%q is not a key: %w", key, errDetachKeys)
		}
	}
	d.keys, d.text = string(keys), s
	return nil
}

// String returns the keys as Set parses them.
func (d *DetachKeys) String() string { return d.text }

// Type is the flag's type in messages.
func (d *DetachKeys) Type() string { return "string" }

// bytes returns the input that detaches.
func (d *DetachKeys) bytes() string {
	if d.keys == "" {
		return usualDetachKeys
	}
	return d.keys
}
