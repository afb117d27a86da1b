package apparmor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/subprocess"
)

// patience bounds one run of the parser, which takes a fraction of a second.
const patience = 30 * time.Second

// Loader loads the default profile when the kernel does not have it.
type Loader struct {
	// Name is the profile's name.
	Name string
	// Kernel is the kernel's directory of AppArmor, with "" /sys/kernel/security/apparmor.
	Kernel string
	// Parser is the program, with "" the apparmor_parser of PATH, /usr/sbin or /sbin.
	Parser string

	loads flight.Group[string, struct{}]
}

// Ensure returns when the kernel has the profile of that name. It loads the default profile if it
// is missing. unable explains why the node has no means to do that: then containers run without the
// profile, as they do with containerd and CRI-O. The error is NotFound for another profile that is
// not loaded.
func (l *Loader) Ensure(ctx context.Context, name string) (unable string, err error) {
	if strings.ContainsAny(name, ":& ") {
		return "", nil // of a namespace, or several profiles: the kernel decides
	}
	loaded, err := l.loaded(name)
	switch {
	case err != nil && name != l.Name:
		return "", nil // the list cannot be read: the kernel decides
	case err != nil:
		return fmt.Sprintf("this node cannot read the loaded profiles: %v", err), nil
	case loaded:
		return "", nil
	case name != l.Name:
		return "", fmt.Errorf("apparmor profile %s is not loaded on this node: load it with apparmor_parser: %w", name, errdefs.ErrNotFound)
	}
	return l.Load(ctx)
}

// Load loads the default profile, in place of one of the same name. Concurrent callers share
// one run of the parser, which continues when the context of one caller ends. unable has the same
// meaning as the result of Ensure.
func (l *Loader) Load(ctx context.Context) (unable string, err error) {
	parser, err := l.parser()
	if err != nil {
		return fmt.Sprintf("this node cannot load %s: install the package apparmor, which has apparmor_parser: %v", l.Name, err), nil
	}
	f := l.join(ctx, parser)
	defer f.Leave()
	return "", f.Wait(ctx)
}

// join joins the run of the parser that is under way, or starts one.
func (l *Loader) join(ctx context.Context, parser string) *flight.Flight[string, struct{}] {
	return l.loads.Join(ctx, l.Name, func() struct{} { return struct{}{} }, func(ctx context.Context, _ struct{}) error { return l.load(ctx, parser) })
}

func (l *Loader) loaded(name string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(l.kernel(), "profiles"))
	if err != nil {
		return false, err
	}
	return listed(string(b), name), nil
}

// listed reports whether a list of the kernel's profiles, a line each with its mode, has the name.
func listed(list, name string) bool {
	for line := range strings.Lines(list) {
		if has, _, ok := strings.Cut(line, " ("); ok && has == name {
			return true
		}
	}
	return false
}

func (l *Loader) kernel() string {
	if l.Kernel != "" {
		return l.Kernel
	}
	return "/sys/kernel/security/apparmor"
}

// load compiles and loads the profile.
func (l *Loader) load(ctx context.Context, parser string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	current, _ := os.ReadFile("/proc/self/attr/current")
	text := Profile(l.Name, daemonOf(string(current)), abilities(filepath.Join(l.kernel(), "features"), l.version(ctx, parser)))
	var said subprocess.Head
	said.Max = 4096
	cmd := subprocess.Command(ctx, parser, "--replace", "--skip-cache", "--quiet")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &said, &said
	if err := subprocess.Run(ctx, cmd); err != nil {
		return fmt.Errorf("load the apparmor profile %s: %s: %w: %s", l.Name, parser, err, said.Line())
	}
	return nil
}

func (l *Loader) parser() (string, error) {
	if l.Parser != "" {
		return l.Parser, nil
	}
	path, err := exec.LookPath("apparmor_parser")
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err == nil {
			return path, nil
		}
		path, err = exec.LookPath(filepath.Join(dir, "apparmor_parser"))
	}
	return path, err
}

// version returns the parser's major version, 0 when it is unknown.
func (l *Loader) version(ctx context.Context, parser string) int {
	var said subprocess.Head
	said.Max = 4096
	cmd := subprocess.Command(ctx, parser, "--version")
	cmd.Stdout = &said
	if err := subprocess.Run(ctx, cmd); err != nil {
		return 0
	}
	return majorOf(said.String())
}

// majorOf reads the parser's answer to --version.
func majorOf(text string) int {
	_, rest, ok := strings.Cut(text, "version ")
	major, _, dotted := strings.Cut(rest, ".")
	n, err := strconv.Atoi(major)
	if !ok || !dotted || err != nil || n < 0 {
		return 0
	}
	return n
}

// daemonOf returns the profile's name in a process's label, "" for a label that no rule can name.
func daemonOf(label string) string {
	name, _, _ := strings.Cut(strings.TrimRight(label, "\n\x00"), " ")
	for _, r := range name {
		if !strings.ContainsRune("/._+-", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return ""
		}
	}
	return name
}

// abilities reads the kernel's directory of features.
func abilities(dir string, parser int) Abilities {
	has := func(names ...string) bool {
		for _, n := range names {
			if _, err := os.Stat(filepath.Join(dir, n)); !errors.Is(err, fs.ErrNotExist) {
				return err == nil
			}
		}
		return false
	}
	namespaces, _ := os.ReadFile(filepath.Join(dir, "namespaces", "mask"))
	return Abilities{
		Mount: has("mount"), Ptrace: has("ptrace"), Signal: has("signal"), Network: has("network_v8", "network"), Unix: has("network/af_unix", "network_v9/af_unix"),
		UserNamespaces: parser >= 4 && strings.Contains(string(namespaces), "userns_create"), Queues: parser >= 4 && has("ipc/posix_mqueue"), Rings: parser >= 4 && has("io_uring"),
	}
}
