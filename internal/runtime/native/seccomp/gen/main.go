// Command gen writes the system call tables of package seccomp from the numbers in
// golang.org/x/sys/unix, in the version that go.mod requires. It is run by go generate
// and knows nothing of filters. Start at main.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tables are the architectures that a filter can tell apart: the supported ones, and the
// 32-bit ones that their kernels run too.
var tables = []struct{ arch, fn string }{ //nolint:gochecknoglobals // a table
	{"amd64", "callsAMD64"},
	{"386", "calls386"},
	{"arm64", "callsARM64"},
	{"arm", "callsARM"},
}

func main() {
	if err := write("calls.go"); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(file string) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output() //nolint:forbidigo,noctx // a tool that is run by hand, no part of the agent
	if err != nil {
		return fmt.Errorf("find golang.org/x/sys: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "unix")
	var b bytes.Buffer
	b.WriteString("// Code generated from the system call numbers of golang.org/x/sys/unix. DO NOT EDIT.\n\npackage seccomp\n")
	for _, t := range tables {
		calls, err := read(filepath.Join(dir, "zsysnum_linux_"+t.arch+".go"))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n// %s are the numbers of linux/%s.\nfunc %s() map[string]uint32 {\n\treturn map[string]uint32{\n", t.fn, t.arch, t.fn)
		names := make([]string, 0, len(calls))
		for n := range calls {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			fmt.Fprintf(&b, "\t\t%q: %d,\n", n, calls[n])
		}
		b.WriteString("\t}\n}\n")
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// read lists a file's constants SYS_NAME by the names that profiles use.
func read(file string) (map[string]uint64, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	calls := map[string]uint64{}
	var bad error
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, id := range v.Names {
			name, ok := strings.CutPrefix(id.Name, "SYS_")
			if !ok || i >= len(v.Values) || name == "SYSCALL_MASK" { // which is none
				continue
			}
			lit, ok := v.Values[i].(*ast.BasicLit)
			if !ok {
				bad = errors.Join(bad, fmt.Errorf("%s: %s is no number", file, id.Name))
				continue
			}
			nr, err := strconv.ParseUint(lit.Value, 0, 32)
			bad = errors.Join(bad, err)
			calls[strings.ToLower(name)] = nr
		}
		return true
	})
	if len(calls) == 0 {
		bad = errors.Join(bad, fmt.Errorf("%s: no system calls", file))
	}
	return calls, bad
}
