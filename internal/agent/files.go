package agent

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/network/dns"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/sleep"
)

// lock creates the two directories and locks the state directory: of two agents on one directory
// each would clean up after the other.
func lock(root, run string) (unlock func(), err error) {
	for _, dir := range []string{root, run} {
		if err := private(dir); err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
	}
	path := filepath.Join(run, "agent.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("agent: %s is in use by an agent with pid %s: stop it, or choose another --state: %w", run, holder, errdefs.ErrUnavailable)
		}
		return nil, fmt.Errorf("agent: lock %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprint(f, os.Getpid())
	}
	return func() { _ = f.Close() }, nil
}

// private creates a directory that other users may not search, or sets such a mode for an existing one: images, bundles
// and volumes below it have setuid files, which otherwise any user of this machine could run.
func private(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory: %w", dir, errdefs.ErrInvalidArgument)
	case ok && int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d: choose another directory, or change its owner to user %d: %w", dir, sys.Uid, os.Geteuid(), errdefs.ErrPermissionDenied)
	case st.Mode()&0o022 != 0:
		// A new tmpfs has this mode; files that others have put into it cannot be trusted.
		if in, err := f.Readdirnames(1); err == nil {
			return fmt.Errorf("others may write to %s, and %s is in it: choose a directory that is for the agent alone: %w", dir, in[0], errdefs.ErrPermissionDenied)
		}
	case st.Mode().Perm()&0o077 == 0:
		return nil
	}
	return f.Chmod(0o700)
}

// claimNetwork claims the builtin network of this network namespace: two agents would lease the
// same addresses and overwrite each other's rules. The claim is an abstract socket, which belongs
// to the network namespace and ends with this process.
func (n *node) claimNetwork(ctx context.Context) (release func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", "@longshore-network")
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("agent: another agent runs in this network namespace: stop it, or run this one in a namespace of its own (ip netns exec): %w", errdefs.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("agent: claim the network: %w", err)
	}
	return func() { _ = l.Close() }, nil
}

// keeperBinary returns the path of longshore-keeper.
func (n *node) keeperBinary() (string, error) {
	return program("longshore-keeper", "agent.keeper", n.cfg.Agent.Keeper)
}

// builtVersion returns the version that is built into a program.
func builtVersion(path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return ""
	}
	return info.Main.Version
}

// verifyBinary returns the path of longshore-verify.
func (n *node) verifyBinary() (string, error) {
	return program("longshore-verify", "images.policy.signature_program", n.cfg.Images.Policy.SignatureProgram)
}

// sleeper returns the part that puts containers to sleep; nil where the node cannot.
func (n *node) sleeper() core.Sleeper {
	path, err := pagesProgram(n)
	if err != nil {
		n.log.Info("no container can be put to sleep", "why", err.Error())
		return nil
	}
	n.rests = sleep.New(sleep.Options{
		Program: path, Root: filepath.Join(n.cfg.Agent.Root, "sleep"), State: filepath.Join(n.cfg.Agent.State, "sleep"),
		Cgroups: n.cgroups, Holder: n.keeper.Held(), Limit: n.cfg.Sleep.MaxBytes, Reserve: n.cfg.Sleep.MinFreeBytes, Swap: n.cfg.Sleep.Swap, Logger: n.log,
		Thawed: n.metrics.Thawed, Woken: n.metrics.Woken,
	})
	return n.rests
}

// pagesProgram returns the path of longshore-pages, or the reason why no container can sleep.
func pagesProgram(n *node) (string, error) {
	if err := sleep.Able(); err != nil {
		return "", err
	}
	return program("longshore-pages", "sleep.program", n.cfg.Sleep.Program)
}

// sleepFinding reports whether containers can sleep.
func sleepFinding(n *node) control.Finding {
	if _, err := pagesProgram(n); err != nil {
		return ok("sleep", "no container can sleep: %v", err)
	}
	asleep, given := 0, uint64(0)
	containers, err := n.engine.All().Stored.Containers()
	for _, c := range containers {
		if c.State == core.ContainerAsleep && c.Rest != nil {
			asleep++
			given += c.Rest.Given
		}
	}
	if err != nil {
		return warn("sleep", "", "%v", err)
	}
	if n.cfg.Sleep.Swap && sleep.FreeSwap() == 0 {
		return warn("sleep", "add swap, or switch sleep.swap off", "sleep.swap is set, and the node has no free swap: the memory of containers that sleep goes to files")
	}
	return ok("sleep", "%d containers sleep, and have freed %d MiB", asleep, given>>20)
}

// program returns the path of one of our other programs: as configured under key, beside our own
// binary, or in PATH.
func program(name, key, configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), name); executable(p) {
			return p, nil
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("agent: %s is neither beside longshore nor in PATH: set %s: %w", name, key, errdefs.ErrNotFound)
	}
	return filepath.Abs(p)
}

func executable(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// files returns the files in /etc of a sandbox's containers, using the host's present resolv.conf.
func (n *node) files(ctx context.Context, sb core.Sandbox) (engine.Files, error) {
	host := dns.Read()
	if ns := sb.Config.Namespaces.Net; ns.Mode == core.Adopted && len(sb.Network.Addrs) == 0 {
		addrs, err := dns.Addresses(ns.Path)
		if err != nil { // the name resolves to a loopback address then
			n.log.WarnContext(ctx, "the addresses of a sandbox in somebody else's network are not known", "sandbox", sb.ID, "error", err)
		}
		sb.Network.Addrs = addrs
		if len(sb.Config.Network.Egress) > 0 { // the list of the network's holder
			sb.Network.Resolver = names.Address()
		}
	}
	f := dns.Render(sb, host)
	return engine.Files{ResolvConf: f.ResolvConf, Hosts: f.Hosts, Hostname: f.Hostname}, nil
}
