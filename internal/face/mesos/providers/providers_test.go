package providers

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

func config(name string) *mesosv1.ResourceProviderInfo {
	return &mesosv1.ResourceProviderInfo{
		Type: proto.String(storageType), Name: &name,
		Storage: &mesosv1.ResourceProviderInfo_Storage{Plugin: &mesosv1.CSIPluginInfo{
			Type: proto.String("org.example.csi"), Name: proto.String("lvm"),
			Containers: []*mesosv1.CSIPluginContainerInfo{{
				Services: []mesosv1.CSIPluginContainerInfo_Service{mesosv1.CSIPluginContainerInfo_CONTROLLER_SERVICE, mesosv1.CSIPluginContainerInfo_NODE_SERVICE},
				Command:  &mesosv1.CommandInfo{Value: proto.String("serve")},
			}},
		}},
	}
}

func TestCheck(t *testing.T) {
	if err := Check(config("disks_1")); err != nil {
		t.Errorf("what is right: %v", err)
	}
	for want, change := range map[string]func(c *mesosv1.ResourceProviderInfo){
		"Unknown local resource provider type 'x'":                                                            func(c *mesosv1.ResourceProviderInfo) { c.Type = proto.String("x") },
		"Resource provider name '../../x' does not follow Java package naming convention":                     func(c *mesosv1.ResourceProviderInfo) { c.Name = proto.String("../../x") },
		"Resource provider name '' does not follow Java package naming convention":                            func(c *mesosv1.ResourceProviderInfo) { c.Name = proto.String("") },
		"Resource provider name '" + strings.Repeat("x", 201) + "' exceeds the maximum length (200)":          func(c *mesosv1.ResourceProviderInfo) { c.Name = proto.String(strings.Repeat("x", 201)) },
		"'ResourceProviderInfo.storage' must be set":                                                          func(c *mesosv1.ResourceProviderInfo) { c.Storage = nil },
		"CSI plugin type 'org..csi' and name 'lvm' does not follow Java package naming convention":            func(c *mesosv1.ResourceProviderInfo) { c.Storage.Plugin.Type = proto.String("org..csi") },
		"CSI plugin type 'org.example.csi' and name 'org.lvm' does not follow Java package naming convention": func(c *mesosv1.ResourceProviderInfo) { c.Storage.Plugin.Name = proto.String("org.lvm") },
		"NODE_SERVICE not found": func(c *mesosv1.ResourceProviderInfo) {
			c.Storage.Plugin.Containers[0].Services = c.Storage.Plugin.Containers[0].Services[:1]
		},
	} {
		c := config("disks")
		change(c)
		if err := Check(c); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestKept: an added provider stays for the next reader, and only an equal one may be added twice.
func TestKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "p")
	open := func() *Dir {
		d, err := New(dir)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	other := config("disks")
	other.Storage.Plugin.Name = proto.String("zfs")
	if err := open().Update(other); !errdefs.IsNotFound(err) {
		t.Errorf("update of nothing: %v", err)
	}
	for range 2 {
		if err := open().Add(config("disks")); err != nil {
			t.Errorf("add: %v", err)
		}
	}
	if err := open().Add(other); !errdefs.IsAlreadyExists(err) {
		t.Errorf("add of another: %v", err)
	}
	if err := open().Update(other); err != nil {
		t.Errorf("update: %v", err)
	}
	if err := open().Add(other); err != nil {
		t.Errorf("add of what it is now: %v", err)
	}
	if err := open().Add(config("more")); err != nil {
		t.Errorf("add of a second: %v", err)
	}
	for _, name := range []string{"disks", "disks", "../p/" + storageType + ".more", "", strings.Repeat("x", 300)} {
		if err := open().Remove(storageType, name); err != nil {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != storageType+".more.json" {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestByHand: a file written by hand counts, in any layout; an invalid one is an error, and an
// update mends it.
func TestByHand(t *testing.T) {
	d, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	byHand := `{ "name": "disks", "type": "` + storageType + `",
		"storage": {"plugin": {"name": "lvm", "type": "org.example.csi", "containers": {"services": ["CONTROLLER_SERVICE", "NODE_SERVICE"], "command": {"value": "serve"}}}} }`
	path := d.file(storageType, "disks")
	if err := os.WriteFile(path, []byte(byHand), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Add(config("disks")); err != nil {
		t.Errorf("the same: %v", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Add(config("disks")); !errdefs.IsDataLoss(err) {
		t.Errorf("beside half a file: %v", err)
	}
	if err := d.Update(config("disks")); err != nil {
		t.Errorf("update: %v", err)
	}
	if err := d.Add(config("disks")); err != nil {
		t.Errorf("after the update: %v", err)
	}
}

// FuzzDecode: no file panics; an accepted one has one form, and one that passes Check has a file in
// the directory.
func FuzzDecode(f *testing.F) {
	raw, err := api.MarshalJSON(config("disks_1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"type":"org.apache.mesos.rp.local.storage","name":"../../x","storage":{}}`))
	f.Add([]byte(`{"type":"t","name":"n","storage":{"plugin":null}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		first, err := canonical(raw)
		if err != nil {
			return
		}
		if again, err := canonical(first); err != nil || !bytes.Equal(first, again) {
			t.Errorf("%s, then %s, %v", first, again, err)
		}
		var info mesosv1.ResourceProviderInfo
		if err := api.UnmarshalJSON(first, &info); err != nil || Check(&info) != nil {
			return
		}
		d := &Dir{path: "/providers"}
		if file := d.file(info.GetType(), info.GetName()); filepath.Dir(file) != "/providers" || filepath.Clean(file) != file || len(filepath.Base(file)) > 255 {
			t.Errorf("%s is kept in %s", first, file)
		}
	})
}
