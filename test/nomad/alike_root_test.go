package nomad

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestKeysOfDockersDriver: an image from an archive of the job's, an address that the
// job names, a cgroup namespace.
func TestKeysOfDockersDriver(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Fatal(err)
		}
		var archive bytes.Buffer
		if err := imagetest.WriteDocker(&archive, map[string]imagetest.Built{"loaded.example/web:1": built}); err != nil {
			t.Fatal(err)
		}
		load := map[string]any{"image": "loaded.example/web:1", "load": "images/web.tar"}
		task := r.given("loaded", "echo from the archive", load)
		r.mkdir("loaded/local/images")
		if err := os.WriteFile(filepath.Join(r.dir, allocID, "loaded/local/images/web.tar"), archive.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, _ := r.said(task); out != "from the archive\n" {
			t.Errorf("the loaded image says %q", out)
		}
		// Nobody else has it by its name.
		other := r.given("other", "true", map[string]any{"image": "loaded.example/web:1", "image_pull_policy": "never"})
		_, err = r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: other})
		says(t, err, "loaded.example/web:1")

		own, err := os.Readlink("/proc/self/ns/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]any{"shown": nil, "host": "host", "private": "private"} {
			out, _ := r.said(r.given(name, "readlink /proc/self/ns/cgroup", map[string]any{"cgroupns": mode}))
			if got := strings.TrimSpace(out); got == "" || (got == own) == (mode == "private") {
				t.Errorf("%s: cgroup namespace %s, the node's is %s", name, got, own)
			}
		}

		if _, err := exec.LookPath("ip"); err != nil {
			t.Skip("no iproute2")
		}
		const look = "ip -o -4 addr show eth0 | sed 's/.*inet //; s, .*,,'; cat /sys/class/net/eth0/address"
		bridge := map[string]any{"network_mode": "bridge"}
		out, _ := r.said(r.given("first", look, bridge))
		first, err := netip.ParsePrefix(strings.Fields(out + " none")[0])
		if err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		want := first.Addr()
		for range 40 {
			want = want.Next()
		}
		fixed := map[string]any{"network_mode": "bridge", "ipv4_address": want.String()}
		holder := r.given("holder", look+"; sleep 1000", fixed)
		r.start(holder)
		_, err = r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: r.given("second", "true", fixed)})
		says(t, err, want.String())
		var b []byte
		nodetest.Eventually(t, "the holder has told its addresses", func() bool {
			b, err = os.ReadFile(filepath.Join(r.dir, allocID, "alloc/logs/holder.stdout.0"))
			return err == nil && bytes.Count(b, []byte("\n")) == 2
		})
		r.stop(holder, "SIGKILL", time.Second)
		r.wait(holder.GetId())
		mac := [4]byte(want.AsSlice())
		if got := strings.Fields(string(b)); err != nil || len(got) != 2 || !strings.HasPrefix(got[0], want.String()+"/") || got[1] != macOf(mac) {
			t.Errorf("it has %q, %v; want %s and %s", b, err, want, macOf(mac))
		}
		r.destroy(holder)
		if out, _ := r.said(r.given("third", look, fixed)); !strings.HasPrefix(out, want.String()+"/") {
			t.Errorf("the next one has %q", out)
		}
		r.nothingLeft()
	})
}

// macOf is the guide's address of a task's interface.
func macOf(a [4]byte) string {
	const hex = "0123456789abcdef"
	mac := "0a:58"
	for _, b := range a {
		mac += ":" + string(hex[b>>4]) + string(hex[b&15])
	}
	return mac
}
