package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImportsStayFew keeps the keeper small: a node has one for all of its life. Every other import
// needs a reason.
func TestImportsStayFew(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	allowed := []string{
		"bytes", "cmp", "context", "encoding/binary", "errors", "io", "io/fs", "iter", "math", "math/bits", "os", "os/signal", "path",
		"reflect", "runtime", "slices", "sort", "strconv", "strings", "sync", "sync/atomic", "syscall", "time", "unicode", "unicode/utf8", "unsafe",
		"golang.org/x/sys/unix",
	}
	const own = "github.com/longshore/longshore/"
	rooms := []string{
		"cmd/longshore-keeper", "internal/keeper/fork", "internal/keeper/kernel", "internal/keeper/nest", "internal/keeper/roles", "internal/keeper/server",
		"internal/keeper/stdio", "internal/keeper/tinyinit", "internal/keeper/wire", "internal/runtime/native/plan", "internal/weaken",
		"internal/beneath", "internal/shortage",
	}
	for _, d := range deps {
		inside := strings.HasPrefix(d, "internal/") || strings.HasPrefix(d, "runtime/") && d != "runtime/debug" && d != "runtime/pprof"
		if room, ok := strings.CutPrefix(d, own); ok {
			inside = slices.Contains(rooms, room)
		}
		if !inside && !slices.Contains(allowed, d) {
			t.Errorf("the keeper depends on %s", d)
		}
	}
	for _, d := range []string{"fmt", "net", "log", "log/slog", "encoding/json", "os/exec", "runtime/debug"} {
		if slices.Contains(deps, d) {
			t.Errorf("the keeper depends on %s", d)
		}
	}
}
