package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

func TestVersionTellsWhatCannotBeAsked(t *testing.T) {
	for _, c := range []struct {
		name, out string
		want      core.RuntimeFeatures
	}{
		{"old crun", "crun version 1.8.1\ncommit: f8a0\nrundir: /run/crun\nspec: 1.0.0\n+SYSTEMD +SELINUX +APPARMOR +CAP +SECCOMP +EBPF +YAJL\n", core.RuntimeFeatures{
			Version: "crun 1.8.1", OCIVersionMax: "1.0.2", UserNamespaces: true, IDMappedMounts: true, RecursiveReadOnly: true,
			SupplementalGroups: true, Seccomp: true, CgroupV2: true, CgroupNamespaces: true, Systemd: true,
		}},
		{"newer crun", "crun version 1.14\n+SYSTEMD +SECCOMP +CRIU\n", core.RuntimeFeatures{
			Version: "crun 1.14", OCIVersionMax: "1.1.0", UserNamespaces: true, IDMappedMounts: true, RecursiveReadOnly: true,
			SupplementalGroups: true, Seccomp: true, CgroupV2: true, CgroupNamespaces: true, Systemd: true, Checkpoint: true,
		}},
		{"runc", "runc version 1.1.5+ds1\ncommit: x\nspec: 1.0.2-dev\n", core.RuntimeFeatures{
			Version: "runc 1.1.5+ds1", OCIVersionMax: "1.0.2", UserNamespaces: true, RecursiveReadOnly: true,
			SupplementalGroups: true, Seccomp: true, CgroupV2: true, CgroupNamespaces: true, Systemd: true, Checkpoint: true,
		}},
		{"someone else", "nonesuch\n", core.RuntimeFeatures{OCIVersionMax: "1.0.2", Seccomp: true}},
	} {
		if d := cmp.Diff(c.want, byVersion(parseVersion(c.out))); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestFeaturesCommandWins(t *testing.T) {
	f := byVersion("crun", "1.20", nil)
	applyFeatures(&f, []byte(`{"ociVersionMax":"1.2.1","mountOptions":["ro"],"linux":{"namespaces":["pid"],"cgroup":{"v2":false,"systemd":true},
		"seccomp":{"enabled":false},"mountExtensions":{"idmap":{"enabled":false}}},"annotations":{"run.oci.crun.checkpoint.enabled":"true"}}`))
	want := core.RuntimeFeatures{Version: "crun 1.20", OCIVersionMax: "1.2.1", SupplementalGroups: true, Systemd: true, Checkpoint: true}
	if d := cmp.Diff(want, f); d != "" {
		t.Error(d)
	}
	before := f
	applyFeatures(&f, []byte("{"))
	if d := cmp.Diff(before, f); d != "" {
		t.Errorf("broken answer changed it: %s", d)
	}
}

func TestErrorsHaveTheRuntimesWordsAndAClass(t *testing.T) {
	dir := t.TempDir()
	r := &Runtime{o: Options{Name: "crun"}}
	for words, class := range map[string]error{
		"executable file `/nope` not found: No such file or directory":                errdefs.ErrNotFound,
		"open executable: Permission denied":                                          errdefs.ErrPermissionDenied,
		"container `x` does not exist":                                                errdefs.ErrNotFound,
		"write to memory.limit_in_bytes: Invalid argument":                            errdefs.ErrInvalidArgument,
		"mount `proc`: No space left on device":                                       errdefs.ErrResourceExhausted,
		"the container `x` is not running":                                            errdefs.ErrFailedPrecondition,
		"exec failed: unable to start container process: exec: \"x\": is a directory": errdefs.ErrInvalidArgument,
	} {
		log := filepath.Join(dir, "log")
		line := `{"msg":` + string(mustJSON(words)) + `,"level":"error","time":"now"}` + "\n" + `{"msg":"chatter","level":"info"}` + "\n"
		if err := os.WriteFile(log, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			r.explain("create container c", log, fmt.Errorf("launch: %w: %w", &core.CommandError{Status: 1}, errdefs.ErrInternal)),
			r.explain("create container c", "/no/log", fmt.Errorf("launch: %w: %w", &core.CommandError{Status: 1, Stderr: words + "\n"}, errdefs.ErrInternal)),
			failure("start container c", "crun", 1, words+"\n"),
		} {
			if !errors.Is(err, class) || errdefs.IsInternal(err) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "chatter") {
				t.Errorf("%q gives %v", words, err)
			}
		}
	}
}

func mustJSON(s string) []byte {
	return []byte(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`)
}

func TestLongWordsAreCut(t *testing.T) {
	err := failure("x", "crun", 1, strings.Repeat("ä", 5000))
	if len(err.Error()) > 2200 || !errors.Is(err, errdefs.ErrUnknown) {
		t.Errorf("%d bytes", len(err.Error()))
	}
}

func TestConsoleSocketsAreShort(t *testing.T) {
	r := &Runtime{o: Options{SocketDir: "/run/longshore/c"}}
	id := core.ID(strings.Repeat("a", 64))
	for _, p := range []core.ProcessID{"", core.ProcessID(strings.Repeat("p/", 400)), "x"} {
		f := r.files("/bundle", core.Ref{Container: id, Process: p})
		if len(f.console) > 107 {
			t.Errorf("%d bytes: %s", len(f.console), f.console)
		}
		for _, path := range []string{f.pid, f.log, f.process} {
			if base := filepath.Base(path); len(base) > 255 || filepath.Dir(path) != "/bundle" {
				t.Errorf("bad file %s", path)
			}
		}
	}
}

// TestARefusedProgramHasAnErrno: none of the programs has a code for it.
func TestARefusedProgramHasAnErrno(t *testing.T) {
	for words, want := range map[string]int{
		"executable file `nosuch` not found in $PATH: No such file or directory": 127,
		`exec: "nosuch": executable file not found in $PATH`:                     127,
		"exec: \"/etc/passwd\": permission denied":                               126,
		"open executable file: Permission denied":                                126,
		"open executable: Permission denied":                                     126,
		"exec: /bin: is a directory":                                             126,
		"open executable: Operation not permitted":                               126, // a directory, for crun
		"read its spec: no such file or directory":                               125,
		"mount /x: no such file or directory":                                    125,
		"anything":                                                               125,
	} {
		err := startFailure("exec in container 3f2a", "crun", 1, words)
		if got := core.StartStatus(err); got != want || !strings.HasPrefix(failure("exec in container 3f2a", "crun", 1, words).Error(), err.Error()) || !strings.HasSuffix(err.Error(), words) && want != 125 {
			t.Errorf("%q: %d, want %d: %v", words, got, want, err)
		}
	}
}
