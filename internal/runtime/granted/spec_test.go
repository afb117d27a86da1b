package granted

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

// TestTheFilterAllowsOnlyWhatNeedsADescriptor checks calls by their arguments.
func TestTheFilterAllowsOnlyWhatNeedsADescriptor(t *testing.T) {
	const program = 7
	f, err := seccomp.Compile(filter(program))
	if err != nil {
		t.Fatal(err)
	}
	const thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD
	for name, c := range map[string]struct {
		nr   uint32
		args [6]uint64
		want bool
	}{
		"read":                         {unix.SYS_READ, [6]uint64{3}, true},
		"openat":                       {unix.SYS_OPENAT, [6]uint64{4}, true},
		"a thread":                     {unix.SYS_CLONE, [6]uint64{thread}, true},
		"a process":                    {unix.SYS_CLONE, [6]uint64{uint64(unix.SIGCHLD)}, false},
		"a process that shares memory": {unix.SYS_CLONE, [6]uint64{unix.CLONE_VM | uint64(unix.SIGCHLD)}, false},
		"a thread with a namespace":    {unix.SYS_CLONE, [6]uint64{thread | unix.CLONE_NEWUSER}, false},
		"clone3":                       {unix.SYS_CLONE3, [6]uint64{}, false},
		"its own execution":            {unix.SYS_EXECVEAT, [6]uint64{program, 0, 0, 0, unix.AT_EMPTY_PATH}, true},
		"execution of another file":    {unix.SYS_EXECVEAT, [6]uint64{program + 1, 0, 0, 0, unix.AT_EMPTY_PATH}, false},
		"execution below a directory":  {unix.SYS_EXECVEAT, [6]uint64{program, 0, 0, 0, 0}, false},
		"execve":                       {unix.SYS_EXECVE, [6]uint64{}, false},
		"a socket":                     {unix.SYS_SOCKET, [6]uint64{unix.AF_INET}, false},
		"a connection":                 {unix.SYS_CONNECT, [6]uint64{5}, false},
		"a message":                    {unix.SYS_SENDMSG, [6]uint64{5, 1, unix.MSG_NOSIGNAL}, true},
		"a connection by sendto":       {unix.SYS_SENDTO, [6]uint64{5, 1, 1, unix.MSG_FASTOPEN}, false},
		"a connection by sendmsg":      {unix.SYS_SENDMSG, [6]uint64{5, 1, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, false},
		"a connection by sendmmsg":     {unix.SYS_SENDMMSG, [6]uint64{5, 1, 1, unix.MSG_FASTOPEN}, false},
		"accept":                       {unix.SYS_ACCEPT4, [6]uint64{5}, true},
		"a signal to a thread":         {unix.SYS_TGKILL, [6]uint64{1, 5}, true},
		"a signal to another":          {unix.SYS_TGKILL, [6]uint64{2, 5}, false},
		"kill":                         {unix.SYS_KILL, [6]uint64{1}, false},
		"its own limits":               {unix.SYS_PRLIMIT64, [6]uint64{0}, true},
		"the limits of another":        {unix.SYS_PRLIMIT64, [6]uint64{1}, false},
		"its name":                     {unix.SYS_PRCTL, [6]uint64{unix.PR_SET_NAME}, true},
		"another of its properties":    {unix.SYS_PRCTL, [6]uint64{unix.PR_SET_DUMPABLE}, false},
		"input for a terminal":         {unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSTI}, false},
		"the bytes that can be read":   {unix.SYS_IOCTL, [6]uint64{0, unix.TIOCINQ}, true},
		"io_uring":                     {unix.SYS_IO_URING_SETUP, [6]uint64{}, false},
		"a call that nobody knows":     {100000, [6]uint64{}, false},
	} {
		if got := f.Allows(c.nr, c.args); got != c.want {
			t.Errorf("%s: allowed is %v", name, got)
		}
	}
}

// TestTheSpecHasNothingOfThePod: a launch has the program's user, arguments and limits.
func TestTheSpecHasNothingOfThePod(t *testing.T) {
	nofile := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 10, Hard: 10}}
	asked := &specs.Spec{
		Hostname: "pod", Annotations: map[string]string{"a": "b"}, Mounts: []specs.Mount{{Destination: "/data", Type: "bind", Source: "/x"}},
		Process: &specs.Process{Args: []string{"/p", "x"}, Env: []string{"SECRET=x"}, Cwd: "/data", User: specs.User{UID: 5}, Rlimits: nofile, Capabilities: &specs.LinuxCapabilities{Effective: []string{"CAP_SYS_ADMIN"}}},
		Linux:   &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/run/netns/pod"}, {Type: specs.UserNamespace, Path: "/run/userns/pod"}, {Type: specs.PIDNamespace, Path: "/proc/7/ns/pid"}}},
	}
	r := &Runtime{o: Options{Dir: "/dir"}}
	got := r.spec(asked, &grant.Resolved{Descriptors: []grant.Descriptor{{Number: 4, Name: "a"}, {Number: 5, Name: "b"}}})
	if got.Hostname == "pod" || len(got.Mounts)+len(got.Annotations) > 0 || got.Root.Path != "/dir/empty" || !got.Root.Readonly {
		t.Errorf("%+v", got)
	}
	p := got.Process
	if !slices.Equal(p.Env, []string{"LISTEN_PID=1", "LISTEN_FDS=3", "LISTEN_FDNAMES=argdata:a:b"}) || p.Cwd != "/" || p.User.UID != 5 || !p.NoNewPrivileges ||
		len(p.Capabilities.Effective) > 0 || !slices.Equal(p.Args, asked.Process.Args) || !slices.Equal(p.Rlimits, nofile) {
		t.Errorf("%+v", p)
	}
	for _, n := range got.Linux.Namespaces {
		if (n.Path != "") != (n.Type == specs.UserNamespace) {
			t.Errorf("the %s namespace is %q", n.Type, n.Path)
		}
	}
	asked.Process.Rlimits = nil
	if p := r.spec(asked, &grant.Resolved{}).Process; !hasLimit(p.Rlimits, "RLIMIT_NOFILE") || len(asked.Process.Rlimits) > 0 {
		t.Errorf("limits %v, asked %v", p.Rlimits, asked.Process.Rlimits)
	}
}

// TestAMountGivesWhatItHas: a document cannot ask for more.
func TestAMountGivesWhatItHas(t *testing.T) {
	got := rights(mountsOf(&specs.Spec{Mounts: []specs.Mount{
		{Destination: "/w/", Type: "bind", Options: []string{"rbind", "rw"}},
		{Destination: "/r", Options: []string{"bind", "ro"}},
		{Destination: "/rr", Options: []string{"rbind", "rro"}},
		{Destination: "/n", Type: "bind", Options: []string{"bind", "noexec"}},
		{Destination: "/proc", Type: "proc"},
		{Destination: "/t", Type: "tmpfs"},
	}}))
	want := map[string]grant.Rights{"/w": grant.AllRights, "/r": grant.Read | grant.Execute, "/rr": grant.Read | grant.Execute, "/n": grant.Read | grant.Write}
	for name, r := range want {
		if got[name] != r {
			t.Errorf("%s: %s, want %s", name, got[name], r)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	if a := access(grant.Read | grant.Write); a != core.AccessRead|core.AccessWrite {
		t.Errorf("access %b", a)
	}
}

func BenchmarkFilter(b *testing.B) {
	for b.Loop() {
		if _, err := seccomp.Compile(filter(7)); err != nil {
			b.Fatal(err)
		}
	}
}
