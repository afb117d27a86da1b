package guestprogram

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/guest/boot"
	"github.com/longshore/longshore/internal/guest/options"
	"github.com/longshore/longshore/internal/guest/vsock"
)

// role is the part that this program plays, by the way it was started.
type role int

const (
	plain   role = iota // by its flags
	service             // in kata-agent's place by another init, as a systemd unit
	first               // as the machine's first process
)

// Named reports whether a program's name, the first of its arguments, is that of a guest's
// agent.
func Named(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := filepath.Base(args[0])
	return name == "init" || name == "kata-agent"
}

// roleOf decides by the program's name and pid. The kernel passes unknown words of its command line to the first
// process, so an init ignores its arguments.
func roleOf(args []string, pid int) role {
	named := Named(args)
	switch {
	case pid == 1 && (named || len(args) <= 1):
		return first
	case named:
		return service
	}
	return plain
}

// machine runs the machine's first process. When it ends, also with an error, it switches the machine's power off: a
// first process must not return.
func (b Build) machine() {
	if err := b.beFirst(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "longshore-guest:", err)
	}
	if err := boot.PowerOff(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "longshore-guest:", err)
	}
	os.Exit(1)
}

func (b Build) beFirst() error {
	if err := boot.Prepare(); err != nil {
		return err
	}
	s, unified, err := b.readOptions("", os.LookupEnv)
	if err != nil {
		return err
	}
	if err := boot.Cgroups("/", unified); err != nil {
		return err
	}
	// Interrupts come from the console's keyboard and must not end the machine.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	reaping, end := context.WithCancel(context.WithoutCancel(ctx))
	var reaper sync.WaitGroup
	reaper.Go(func() { boot.Reap(reaping, slog.New(slog.NewJSONHandler(os.Stderr, nil))) })
	defer reaper.Wait()
	defer end()
	return s.serve(ctx, os.Stderr)
}

// serveAsKataAgent parses the arguments of kata-agent and serves.
func (b Build) serveAsKataAgent(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("kata-agent", flag.ContinueOnError)
	flags.SetOutput(out)
	var file string
	const usage = "an option `file` to read in place of the one on the kernel's command line"
	flags.StringVar(&file, "config", "", usage)
	flags.StringVar(&file, "c", "", usage)
	show := flags.Bool("version", false, "show the version and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	}
	if *show {
		_, err := fmt.Fprintln(out, "longshore-guest", b.Version)
		return err
	}
	s, _, err := b.readOptions(file, os.LookupEnv)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return s.serve(ctx, out)
}

// readOptions reads the options of the option file, of the kernel's command line and of the environment. Later sources
// take precedence.
func (b Build) readOptions(file string, lookup func(string) (string, bool)) (s settings, unified bool, err error) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return s, false, fmt.Errorf("kernel command line: %w", err)
	}
	o, err := read(string(line), file, lookup)
	if err != nil {
		return s, false, err
	}
	s = settings{Build: b, listen: o.Listen, state: ownState, groups: ownGroups, level: o.Log, logPort: o.LogPort, streamPort: o.StreamPort, plugTime: o.HotplugTimeout, reclaim: o.ReclaimPaused, cdi: guest.CDI{Dir: guest.CDIDir, Wait: o.CDITimeout, Visible: o.VisibleCDI}}
	if s.policyFile, err = firstPolicy(o.PolicyFile, kataPolicy); err != nil {
		return s, false, err
	}
	switch {
	case o.ControlPort == 0:
	case b.Control == nil:
		s.warnings = append(s.warnings, "control_vport: only `longshore guest` serves it, not this smaller agent")
	default:
		s.control = &options.Address{CID: vsock.Any, Port: o.ControlPort}
	}
	for _, name := range o.Unserved {
		s.warnings = append(s.warnings, name+": not served by this agent")
	}
	for _, name := range o.Unknown {
		s.warnings = append(s.warnings, fmt.Sprintf("%.100q: unknown", name))
	}
	return s, o.Unified, nil
}

// kataPolicy is the path of the first policy in Kata's machine images.
const kataPolicy = "/etc/kata-opa/default-policy.rego"

// firstPolicy returns the file of the first policy: the one that the options name, or else Kata's,
// if it exists.
func firstPolicy(named, usual string) (string, error) {
	if named != "" {
		return named, nil
	}
	switch _, err := os.Lstat(usual); {
	case err == nil:
		return usual, nil
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	default:
		return "", fmt.Errorf("find the first policy: %w", err)
	}
}

func read(line, file string, lookup func(string) (string, bool)) (options.Options, error) {
	o := options.Default()
	if err := o.CommandLine(line); err != nil {
		return o, err
	}
	if file == "" {
		file = o.File
	}
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return o, fmt.Errorf("option file: %w", err)
		}
		o = options.Default()
		if err := o.FileText(string(b)); err != nil {
			return o, fmt.Errorf("%s: %w", file, err)
		}
		if err := o.CommandLine(line); err != nil {
			return o, err
		}
	}
	return o, o.Environment(lookup)
}
