package ocicli

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// FuzzState: no state.json panics, and none that is taken leads a delete to a
// cgroup that is everybody's.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"id":"c","cgroup":"/c","pid":7,"mounts":-1,"ticks":9,"first":3,"steps":["a"]}`))
	f.Add([]byte(`{"id":"c","cgroup":"/../..","pid":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord("c", b)
		if err != nil {
			return
		}
		if r.ID != "c" || r.Pid < 0 || !filepath.IsAbs(r.Cgroup) || filepath.Clean(r.Cgroup) != r.Cgroup || r.Cgroup == "/" {
			t.Errorf("taken: %+v", r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecord("c", again); err != nil {
			t.Errorf("what it wrote itself is refused: %v", err)
		}
	})
}

// FuzzConfig: no config.json panics, and an accepted one has root and linux.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.2.0","root":{"path":"rootfs"},"linux":{}}`))
	f.Add([]byte(`{"ociVersion":"2.0.0"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSpec(b)
		if err == nil && (s.Root == nil || s.Root.Path == "" || s.Linux == nil) {
			t.Errorf("taken: %+v", s)
		}
	})
}

// FuzzProcess: no file of --process panics; an accepted one has args and cwd.
func FuzzProcess(f *testing.F) {
	f.Add([]byte(`{"args":["sh"],"cwd":"/","capabilities":{"bounding":["CAP_CHOWN"]},"user":{"uid":1}}`))
	f.Add([]byte(`{"args":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeProcess(b)
		if err == nil && (len(p.Args) == 0 || p.Cwd == "") {
			t.Errorf("taken: %+v", p)
		}
	})
}

// FuzzUpdate: no file of --resources and no value of a flag of update panics, and the kernel can
// take an accepted value.
func FuzzUpdate(f *testing.F) {
	f.Add([]byte(`{"memory":{"limit":1048576},"cpu":{"quota":-1},"pids":{"limit":7}}`), "64m")
	f.Add([]byte(`{"unified":{"../x":"y"}}`), "-1")
	f.Add([]byte(`[]`), "4194304t")
	f.Fuzz(func(t *testing.T, b []byte, value string) {
		if res, err := decodeResources(b); err == nil {
			again, err := json.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeResources(again); err != nil {
				t.Errorf("what was taken is refused: %v", err)
			}
		} else if !errdefs.IsInvalidArgument(err) {
			t.Errorf("refused with %v", err)
		}
		var bytes, number *int64
		var positive *uint64
		if err := size(&bytes)(value); err == nil && (*bytes < -1 || *bytes > 1<<62) {
			t.Errorf("%q is %d bytes", value, *bytes)
		}
		_, _ = signed(&number)(value), unsigned(&positive)(value)
	})
}

func TestSignalsByAnyName(t *testing.T) {
	for in, want := range map[string]int{"9": 9, "KILL": 9, "SIGKILL": 9, "sigterm": 15, "RTMIN+3": 37, "SIGRTMAX-1": 63, "0": 0} {
		got, err := parseSignal(in)
		if err != nil || int(got) != want {
			t.Errorf("%s: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "NOSUCH", "-1", "99", "RTMIN+99", "RTMINx"} {
		if got, err := parseSignal(in); err == nil {
			t.Errorf("%q: %d, want an error", in, got)
		}
	}
}

func TestIDsAreFileNames(t *testing.T) {
	for _, good := range []string{"a", "a.b-c_d+e", "0"} {
		if err := validID(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".", "..", ".new-a", "a/b", "a b", "ü"} {
		if validID(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestSizesHaveEndings(t *testing.T) {
	for in, want := range map[string]int64{"-1": -1, "0": 0, "100": 100, "2k": 2048, "3m": 3 << 20, "1G": 1 << 30, "1GiB": 1 << 30} {
		var got *int64
		if err := size(&got)(in); err != nil || *got != want {
			t.Errorf("%s: %v, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "1x", "-2", "9999999t"} {
		var got *int64
		if size(&got)(in) == nil {
			t.Errorf("%q: %d, want an error", in, *got)
		}
	}
}
