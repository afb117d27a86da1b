package checkpoint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/longshore/longshore/internal/checkpoint/archive"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// The images of CRIU decide about the rights of restored processes. examine compares these with the container's spec while the
// processes are stopped, before they have run.

// examineFilters compares the seccomp filters of a checkpoint with the spec's: each thread's first filter is that of the spec, which
// later ones can only tighten.
func (c *Checkpointer) examineFilters(id core.ID, spec *specs.Spec) error {
	if spec.Linux.Seccomp == nil || c.o.Filter == nil {
		return nil
	}
	program, err := c.o.Filter(spec.Linux.Seccomp)
	if err != nil {
		return err
	}
	var want []byte
	for _, in := range program {
		want = binary.LittleEndian.AppendUint16(want, in.Code)
		want = binary.LittleEndian.AppendUint32(append(want, in.Jt, in.Jf), in.K)
	}
	b, err := os.ReadFile(filepath.Join(c.dir(id), archive.Images, "seccomp.img"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the checkpoint has no seccomp filters, and the container has: %w", errdefs.ErrPermissionDenied)
	}
	if err != nil {
		return err
	}
	firsts, err := firstFilters(b)
	if err != nil {
		return fmt.Errorf("seccomp.img of the checkpoint: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	for _, f := range firsts {
		if !bytes.Equal(f, want) {
			return fmt.Errorf("the checkpoint has processes with another seccomp filter than the container's: %w", errdefs.ErrPermissionDenied)
		}
	}
	return nil
}

// firstFilters returns the filters without a previous one in CRIU's image of seccomp filters: two numbers, the length of the message,
// and the message.
func firstFilters(b []byte) (list [][]byte, err error) {
	if len(b) < 12 || uint64(binary.LittleEndian.Uint32(b[8:])) != uint64(len(b)-12) {
		return nil, errors.New("its length is wrong")
	}
	err = fields(b[12:], func(number protowire.Number, entry []byte) error {
		if number != 1 { // seccomp_filters
			return nil
		}
		var filter []byte
		first := true
		err := fields(entry, func(number protowire.Number, v []byte) error {
			switch number {
			case 1: // filter
				filter = v
			case 2: // prev
				first = false
			}
			return nil
		})
		if err == nil && first {
			list = append(list, filter)
		}
		return err
	})
	return list, err
}

// fields calls fn with the fields of a message of protobuf, in their order. Only those of bytes have a value.
func fields(b []byte, fn func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(b)
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		if err := fn(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// exceeds is the error of a process with more rights than its container's.
func exceeds(pid int, format string, args ...any) error {
	return fmt.Errorf("the checkpoint has a process (%d) with more rights than the container: %s: %w", pid, fmt.Sprintf(format, args...), errdefs.ErrPermissionDenied)
}

// examine checks all processes of a container but those of the mount namespace of the process criu. first is its first process.
func (c *Checkpointer) examine(ctx context.Context, ct *core.Container, spec *specs.Spec, criu, first int) error {
	pids, err := c.o.Cgroups.Pids(ctx, ct.Cgroup)
	if err != nil {
		return err
	}
	own, err := namespaceOf(criu, "mnt")
	if err != nil {
		return err
	}
	found := false
	for _, pid := range pids {
		ns, err := namespaceOf(pid, "mnt")
		if errors.Is(err, fs.ErrNotExist) {
			continue // a zombie has no namespaces
		}
		if err != nil {
			return err
		}
		if ns == own {
			continue
		}
		if err := examineProcess(pid, spec); err != nil {
			return err
		}
		found = found || pid == first
	}
	if !found {
		return exceeds(first, "it has no mount namespace of its own, or is outside of the cgroup")
	}
	return nil
}

// examineProcess checks one process with all of its threads.
func examineProcess(pid int, spec *specs.Spec) error {
	if err := examineNamespaces(pid, spec); err != nil {
		return err
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "task", t.Name(), "status"))
		if err != nil {
			return err
		}
		status, err := readStatus(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if err := examineStatus(pid, status, spec.Process, spec.Linux.Seccomp != nil); err != nil {
			return err
		}
		if err := examineLabel(pid, t.Name(), spec.Process); err != nil {
			return err
		}
	}
	return examineLimits(pid, spec.Process)
}

// readStatus returns the lines of /proc/PID/status by their names.
func readStatus(f *os.File) (map[string]string, error) {
	m := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			m[name] = strings.TrimSpace(value)
		}
	}
	return m, lines.Err()
}

// examineStatus checks capabilities, no_new_privs and seccomp of a thread.
func examineStatus(pid int, status map[string]string, p *specs.Process, filtered bool) error {
	allowed := boundingSet(p)
	for _, set := range []string{"CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"} {
		has, err := strconv.ParseUint(status[set], 16, 64)
		if err != nil {
			return fmt.Errorf("%s of process %d: %w", set, pid, err)
		}
		if more := has &^ allowed; more != 0 {
			return exceeds(pid, "capability %s", capabilityName(more))
		}
	}
	if p.NoNewPrivileges && status["NoNewPrivs"] != "1" {
		return exceeds(pid, "no_new_privs is not set")
	}
	if filtered && status["Seccomp"] != strconv.Itoa(unix.SECCOMP_MODE_FILTER) {
		return exceeds(pid, "it has no seccomp filter")
	}
	return nil
}

// boundingSet returns the bounding set of a process: no program that it executes gets more.
func boundingSet(p *specs.Process) (bits uint64) {
	if p.Capabilities == nil {
		return 0
	}
	for i, name := range ocispec.AllCapabilities() {
		if slices.Contains(p.Capabilities.Bounding, name) {
			bits |= 1 << i
		}
	}
	return bits
}

// capabilityName names the first one of a set.
func capabilityName(bits uint64) string {
	for i, name := range ocispec.AllCapabilities() {
		if bits&(1<<i) != 0 {
			return name
		}
	}
	return fmt.Sprintf("%#x", bits)
}

// kinds are the namespaces by their names in /proc.
var kinds = map[specs.LinuxNamespaceType]string{ //nolint:gochecknoglobals // a table
	specs.PIDNamespace: "pid", specs.NetworkNamespace: "net", specs.MountNamespace: "mnt", specs.IPCNamespace: "ipc",
	specs.UTSNamespace: "uts", specs.UserNamespace: "user", specs.CgroupNamespace: "cgroup",
}

// examineNamespaces compares namespaces with those of the spec: the sandbox's, the host's, or some that are not the host's.
func examineNamespaces(pid int, spec *specs.Spec) error {
	for kind, name := range kinds {
		is, err := namespaceOf(pid, name)
		if err != nil {
			return err
		}
		host, err := namespaceOf(os.Getpid(), name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == kind })
		switch {
		case i < 0:
			if is != host {
				return exceeds(pid, "another %s namespace", kind)
			}
		case spec.Linux.Namespaces[i].Path != "":
			var st unix.Stat_t
			if err := unix.Stat(spec.Linux.Namespaces[i].Path, &st); err != nil {
				return &os.PathError{Op: "stat", Path: spec.Linux.Namespaces[i].Path, Err: err}
			}
			if is != strconv.FormatUint(st.Ino, 10) {
				return exceeds(pid, "another %s namespace than the sandbox's", kind)
			}
		case is == host:
			return exceeds(pid, "the host's %s namespace", kind)
		}
	}
	return nil
}

// examineLabel compares the label of AppArmor or SELinux, where the spec has one.
func examineLabel(pid int, thread string, p *specs.Process) error {
	want := p.ApparmorProfile
	if want == "" {
		want = p.SelinuxLabel
	}
	if want == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", thread, "attr/current"))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
		return nil // no such module is in the kernel: the native runtime has refused or left out the label before
	}
	if err != nil {
		return err
	}
	is := strings.TrimRight(string(b), "\x00\n")
	if is != want && is != want+" (enforce)" && is != want+" (complain)" {
		return exceeds(pid, "it is confined as %q, not as %q", is, want)
	}
	return nil
}

// resources are the numbers of limits.
var resources = []string{ //nolint:gochecknoglobals // a table
	"RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_STACK", "RLIMIT_CORE", "RLIMIT_RSS", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_AS",
	"RLIMIT_LOCKS", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME",
}

// examineLimits compares the hard limits, which only CAP_SYS_RESOURCE can raise.
func examineLimits(pid int, p *specs.Process) error {
	if p.Capabilities != nil && slices.Contains(p.Capabilities.Bounding, "CAP_SYS_RESOURCE") {
		return nil
	}
	for _, l := range p.Rlimits {
		n := slices.Index(resources, l.Type)
		if n < 0 {
			continue
		}
		var is unix.Rlimit
		if err := unix.Prlimit(pid, n, nil, &is); err != nil {
			return os.NewSyscallError("prlimit", err)
		}
		if is.Max > l.Hard {
			return exceeds(pid, "%s of %d", l.Type, is.Max)
		}
	}
	return nil
}
