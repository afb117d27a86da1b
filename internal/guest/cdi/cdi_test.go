package cdi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const vendorFile = `
cdiVersion: 0.6.0
kind: vendor.com/gpu
containerEdits:
  env: [COMMON=1]
  hooks:
    - {hookName: createContainer, path: /bin/update, args: [update, ldcache]}
devices:
  - name: "0"
    containerEdits:
      env: [GPU=zero, PATH=/vendor]
      deviceNodes:
        - path: /dev/gpu0
          hostPath: /dev/null
          permissions: rw
      mounts:
        - {hostPath: /usr/lib/gpu.so, containerPath: /lib/gpu.so, options: [ro, nosuid, bind]}
      additionalGids: [0, 44]
  - name: all
    containerEdits:
      deviceNodes:
        - {path: /dev/gpu-all, type: c, major: 195, minor: 255, fileMode: 384, uid: 7}
`

func write(t *testing.T, files map[string]string) Dir {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Dir(dir)
}

func TestWhatAContainerGets(t *testing.T) {
	dir := write(t, map[string]string{"vendor.yaml": vendorFile, "broken.json": "{", "other.txt": vendorFile})
	s := &specs.Spec{Process: &specs.Process{Env: []string{"PATH=/bin", "A=b"}}, Mounts: []specs.Mount{{Destination: "/lib/gpu.so", Type: "tmpfs"}}, Linux: &specs.Linux{}}
	edits, err := dir.Find([]string{"vendor.com/gpu=0", "vendor.com/gpu=all"})
	if err != nil {
		t.Fatal(err)
	}
	if err := edits.Apply(s); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"ociVersion":"","process":{"user":{"uid":0,"gid":0,"additionalGids":[44]},"env":["PATH=/vendor","A=b","COMMON=1","GPU=zero"],"cwd":""},` +
		`"mounts":[{"destination":"/lib/gpu.so","type":"bind","source":"/usr/lib/gpu.so","options":["ro","nosuid","bind"]}],` +
		`"hooks":{"createContainer":[{"path":"/bin/update","args":["update","ldcache"]}]},` +
		`"linux":{"resources":{"devices":[{"allow":true,"type":"c","major":1,"minor":3,"access":"rw"},{"allow":true,"type":"c","major":195,"minor":255,"access":"rwm"}]},` +
		`"devices":[{"path":"/dev/gpu0","type":"c","major":1,"minor":3,"fileMode":438},{"path":"/dev/gpu-all","type":"c","major":195,"minor":255,"fileMode":384,"uid":7}]}}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestDevicesThatAreNotThere(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": vendorFile, "b.json": `{"kind":"vendor.com/nic","devices":[{"name":"0"},{"name":"1"}]}`, "c.json": `{"kind":"vendor.com/nic","devices":[{"name":"1"}]}`, "bad.yaml": "a: ["})
	for name, c := range map[string]struct {
		says   string
		notYet bool
	}{
		"vendor.com/gpu=9":  {"has others of its kind", false},
		"vendor.com/none=0": {"bad.yaml", true},
		"vendor.com/nic=1":  {"is in two files", false},
		"vendor.com/nic":    {"is wanted", false},
		"gpu=0":             {"is wanted", false},
	} {
		_, err := dir.Find([]string{name})
		if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrNotYet) != c.notYet {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := dir.Find([]string{"vendor.com/nic=0"}); err != nil {
		t.Errorf("a broken file beside keeps a device away: %v", err)
	}
	if _, err := Dir(filepath.Join(string(dir), "none")).Find([]string{"vendor.com/gpu=0"}); !errors.Is(err, ErrNotYet) {
		t.Errorf("no directory: %v", err)
	}
}

func TestEditsThatAreRefused(t *testing.T) {
	for what, one := range map[string]string{
		"a hook of no kind": "hooks: [{hookName: later, path: /x}]", "intelRdt": "intelRdt: {closID: a}", "netDevices": "netDevices: [{name: a}]",
		"a device that is a directory": "deviceNodes: [{path: /tmp}]", "another type": "deviceNodes: [{path: /dev/null, type: b}]", "no file": "deviceNodes: [{path: /dev/none-there}]",
	} {
		edits, err := write(t, map[string]string{"a.yaml": "kind: v.com/c\ndevices: [{name: a, containerEdits: {" + one + "}}]"}).Find([]string{"v.com/c=a"})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := edits.Apply(&specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}); err == nil {
			t.Errorf("%s was not refused", what)
		}
	}
}

func TestNames(t *testing.T) {
	list, err := Names(map[string]string{"cdi.k8s.io/b": "v.com/c=1,v.com/c=0", "cdi.k8s.io/a": "v.com/c=0", "other": "x"})
	if err != nil || !slices.Equal(list, []string{"v.com/c=0", "v.com/c=1"}) {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := Names(map[string]string{"cdi.k8s.io/a": "gpu0"}); err == nil {
		t.Error("a name without a kind was taken")
	}
	for value, want := range map[string]string{
		"": "", "none": "", "void": "", "v.com/c=0,1:w.com/d=all": "v.com/c=0 v.com/c=1 w.com/d=all", " v.com/c = 00 , 0 ": "v.com/c=0",
		"v.com/c": "refused", "v.com/c=": "refused", "c=0": "refused", "v.com/c=0,all": "refused", "v.com/c=-1": "refused", "v.com/c=a": "refused", ":": "refused",
	} {
		list, err := Visible([]string{"A=b", "VISIBLE_CDI_DEVICES=" + value, "VISIBLE_CDI_DEVICES=v.com/c=9"})
		got := strings.Join(list, " ")
		if err != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("%q: %s, %v", value, got, err)
		}
	}
}

// FuzzFiles: no file or name causes a panic, and each file that is read has a kind.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(vendorFile), "vendor.com/gpu=0,1:v.com/c=all")
	f.Add([]byte(`{"kind":"a/b"}`), "a/b=c")
	f.Fuzz(func(t *testing.T, b []byte, names string) {
		one, err := decode(b)
		if err == nil && one.Kind == "" {
			t.Error("a file without a kind was read")
		}
		list, _ := Visible([]string{variable + names})
		more, _ := Names(map[string]string{annotationPrefix + "x": names})
		for _, n := range append(list, more...) {
			if _, _, err := split(n); err != nil {
				t.Errorf("%q: %v", n, err)
			}
		}
	})
}
