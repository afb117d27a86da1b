package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/subprocess"
)

// maxProgramOutput is how much of a program's output is kept: less than a message of the
// protocol may have.
const maxProgramOutput = 3 << 20

// tables are the programs of packet filters, by whether they are IPv6's.
var tables = map[bool]string{false: "iptables", true: "ip6tables"} //nolint:gochecknoglobals // a table

// PacketFilter returns the rules of the packet filter, as iptables-save writes them.
func (m *Machine) PacketFilter(ctx context.Context, ipv6 bool) ([]byte, error) {
	return m.tool(ctx, nil, tables[ipv6]+"-save")
}

// SetPacketFilter replaces the rules of the tables that stand in them.
func (m *Machine) SetPacketFilter(ctx context.Context, ipv6 bool, rules []byte) ([]byte, error) {
	return m.tool(ctx, rules, tables[ipv6]+"-restore", "--wait", "5")
}

// tool runs a program of the image's.
func (m *Machine) tool(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		out, err := m.kernel.program(ctx, stdin, dir+"/"+name, args...)
		if !errors.Is(err, exec.ErrNotFound) {
			return out, err
		}
	}
	return nil, fmt.Errorf("there is no %s in /usr/sbin and /sbin: %w", name, exec.ErrNotFound)
}

// LoadModule loads a module of the kernel with those it needs.
func (m *Machine) LoadModule(ctx context.Context, name string, parameters []string) error {
	if name == "" || strings.HasPrefix(name, "-") {
		return invalid.Errorf("kernel module %q: no name of a module", name)
	}
	// Arguments after the name are parameters for modprobe, also with a '-'.
	if _, err := m.kernel.program(ctx, nil, "/sbin/modprobe", append([]string{"-v", "--", name}, parameters...)...); err != nil {
		return fmt.Errorf("kernel module %s: %w", name, err)
	}
	return nil
}

// runProgram returns a program's output. Its error has the program's own message, and is
// exec.ErrNotFound if there is no such program.
func runProgram(ctx context.Context, stdin []byte, path string, args ...string) ([]byte, error) {
	cmd := subprocess.Command(ctx, path, args...)
	out, errs := &subprocess.Head{Max: maxProgramOutput}, &subprocess.Head{Max: maxProgramOutput}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), out, errs
	err := subprocess.Run(ctx, cmd)
	var exit *exec.ExitError
	switch {
	case err == nil && out.Truncated():
		return nil, fmt.Errorf("%s wrote more than %d bytes", path, maxProgramOutput)
	case err == nil:
		return out.Bytes(), nil
	case errors.As(err, &exit):
		return nil, fmt.Errorf("%s: %w: %s", path, err, strings.TrimSpace(errs.String()))
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", path, exec.ErrNotFound)
	default:
		return nil, err
	}
}
