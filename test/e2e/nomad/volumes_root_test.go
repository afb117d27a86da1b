package nomad

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// create makes a volume by a specification.
func (r *rig) create(spec string) {
	r.t.Helper()
	if out, err := r.nomadIn(spec, "volume", "create", "-"); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
}

// mounting is a group's block of a volume, and the task's.
func mounting(kind, source string) (group, task string) {
	return once + `
    volume "data" {
      type            = "` + kind + `"
      source          = "` + source + `"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }`, `
      volume_mount {
        volume      = "data"
        destination = "/data"
      }`
}

// writesAndReads runs a task that writes into a volume and then, when that has released it, one
// that reads the text.
func (r *rig) writesAndReads(kind, source string) {
	r.t.Helper()
	group, task := mounting(kind, source)
	r.run(job("writer", "batch", group, task, `args = ["-c", "echo kept > /data/file"]`))
	r.allocation("writer", "complete")
	r.run(job("reader", "batch", group, task, `args = ["-c", "cat /data/file; grep -c ' /data ' /proc/mounts"]`))
	r.logged(r.allocation("reader", "complete"), "kept\n1\n")
	r.purge("writer", "reader")
}

// TestACSIPluginIsATask: a CSI plugin runs by our driver and mounts volumes, which
// other tasks of ours then have. CSI_PLUGIN is test/e2e/nomad/csi, built.
func TestACSIPluginIsATask(t *testing.T) {
	binary := os.Getenv("CSI_PLUGIN")
	if binary == "" {
		t.Skip("needs the CSI plugin: set CSI_PLUGIN to the binary of test/e2e/nomad/csi, as make e2e-nomad does")
	}
	start(t, options{shared: true, plugin: "allow_privileged = true\n volumes {\n enabled = true\n }"}, func(r *rig) {
		volumes := filepath.Join(r.dir, "volumes")
		if err := os.Mkdir(volumes, 0o755); err != nil {
			t.Fatal(err)
		}
		r.run(job("csi", "system", "", `
      csi_plugin {
        id        = "dirs"
        type      = "monolith"
        mount_dir = "/csi"
      }`, `privileged = true
        args       = ["-c", "exec /plugin -dir /volumes"]
        volumes    = ["`+binary+`:/plugin:ro", "`+volumes+`:/volumes"]`))
		plugin := r.allocation("csi", "running")
		r.eventually("the plugin is healthy", func() bool {
			var p struct{ ControllersHealthy, NodesHealthy int }
			return r.get("/v1/plugin/csi/dirs", &p) && p.ControllersHealthy == 1 && p.NodesHealthy == 1
		})
		r.create(`
id        = "vol"
name      = "vol"
type      = "csi"
plugin_id = "dirs"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}`)
		r.writesAndReads("csi", "vol")
		if b, err := os.ReadFile(filepath.Join(volumes, "vol", "file")); err != nil || string(b) != "kept\n" {
			t.Errorf("the plugin has %q, %v", b, err)
		}
		// A plugin that is started again has its volumes, and nothing is left mounted.
		r.must("alloc", "restart", plugin.ID)
		r.eventually("the plugin is healthy again", func() bool {
			var p struct{ ControllersHealthy, NodesHealthy int }
			return r.look(plugin).started("main") == 2 && r.get("/v1/plugin/csi/dirs", &p) && p.NodesHealthy == 1
		})
		r.writesAndReads("csi", "vol")
		r.eventually("the volume is nowhere mounted", func() bool {
			b, err := os.ReadFile("/proc/self/mountinfo")
			return err == nil && !strings.Contains(string(b), "/volumes/vol ")
		})
		r.eventually("the volume is deleted", func() bool {
			_, err := r.nomad("volume", "delete", "vol")
			return err == nil
		})
		if _, err := os.Stat(filepath.Join(volumes, "vol")); !os.IsNotExist(err) {
			t.Errorf("the plugin still has it: %v", err)
		}
		r.purge("csi")
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// TestDevicesOfADevicePlugin: the devices that Nomad's example plugin reserves are in the task.
func TestDevicesOfADevicePlugin(t *testing.T) {
	binary := os.Getenv("DEVICE_PLUGIN")
	if binary == "" {
		t.Skip("needs a device plugin: set DEVICE_PLUGIN to plugins/device/cmd/example/cmd of Nomad's sources, built")
	}
	devices := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(devices, name), []byte("device "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, options{device: binary, extra: `plugin "device" {
  config {
    dir         = "` + devices + `"
    list_period = "1s"
  }
}`}, func(r *rig) {
		body := job("device", "batch", once, "", `args = ["-c", "cat /tmp/task-mounts/*; ls /tmp/task-mounts | wc -l"]`)
		asks := func(n string) string {
			return strings.Replace(body, "memory = 32", "memory = 32\n        device \"nomad/file/mock\" {\n          count = "+n+"\n        }", 1)
		}
		r.run(asks("2"))
		out := r.logged(r.allocation("device", "complete"), "2\n")
		if out != "device one\ndevice two\n2\n" {
			t.Errorf("the task has %q", out)
		}
		r.purge("device")
		r.must("system", "gc")
		r.nothingLeft()
	})
}

// TestDynamicHostVolumes are made by Nomad while it runs.
func TestDynamicHostVolumes(t *testing.T) {
	start(t, options{}, func(r *rig) {
		if r.node().Attributes["plugins.host_volume.mkdir.version"] == "" {
			t.Skip("this Nomad has no dynamic host volumes: they came with 1.10")
		}
		r.create(`
name      = "dyn"
type      = "host"
plugin_id = "mkdir"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}`)
		r.writesAndReads("host", "dyn")
		var list []struct{ ID, Name string }
		r.send(http.MethodGet, "/v1/volumes?type=host", nil, &list)
		if len(list) != 1 || list[0].Name != "dyn" {
			t.Fatalf("volumes %v", list)
		}
		r.must("system", "gc")
		r.eventually("the volume is deleted", func() bool {
			_, err := r.nomad("volume", "delete", "-type", "host", list[0].ID)
			return err == nil
		})
		r.nothingLeft()
	})
}
