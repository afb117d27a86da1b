package plugin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

func TestOneNameAndItsCapabilities(t *testing.T) {
	for name, want := range map[string]nomaddriver.DriverCapabilities_FSIsolation{
		plugin.DriverName: nomaddriver.DriverCapabilities_IMAGE, plugin.DockerName: nomaddriver.DriverCapabilities_IMAGE, plugin.ExecName: nomaddriver.DriverCapabilities_CHROOT,
	} {
		if got := plugin.Capabilities(name, plugin.Default()).GetCapabilities().GetFsIsolation(); got != want {
			t.Errorf("as %s: %s, want %s", name, got, want)
		}
	}
}

func TestRangesOfUsers(t *testing.T) {
	users := func(more map[string]any) (plugin.Users, error) {
		c, err := plugin.ParseConfig(nomadtest.Encode(map[string]any{"userns": more}))
		return c.Users, err
	}
	if got, err := users(nil); err != nil || got != plugin.Default().Users {
		t.Errorf("said nothing: %+v, %v", got, err)
	}
	if got, err := users(map[string]any{"first_id": 100000, "ranges": 7}); err != nil || got.First != 100000 || got.Ranges != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
	for text, bad := range map[string]map[string]any{
		"first_id": {"first_id": 1000}, "ranges": {"ranges": 0}, "end at 4294967296": {"first_id": 4294901760 - 65536*9, "ranges": 10},
	} {
		if _, err := users(bad); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %s", bad, err, text)
		}
	}
}

// TestTheBlocksOfOtherDriversAreTaken: each key of the plugin blocks of docker's and podman's drivers.
func TestTheBlocksOfOtherDriversAreTaken(t *testing.T) {
	c, err := plugin.ParseConfig(nomadtest.Encode(map[string]any{
		"endpoint": "unix:///var/run/docker.sock", "auth": map[string]any{"config": "/root/.docker/config.json", "helper": "ecr"}, "tls": map[string]any{"cert": "a", "key": "b", "ca": "c"},
		"extra_labels": []string{"job_name"}, "logging": map[string]any{"type": "json-file", "config": []any{map[string]any{"max-size": "2m"}}},
		"gc":      map[string]any{"image": true, "image_delay": "3m", "container": true, "dangling_containers": map[string]any{"enabled": true, "period": "5m", "creation_grace": "5m", "dry_run": false}},
		"volumes": map[string]any{"enabled": true, "selinuxlabel": "z"}, "allow_privileged": false, "allow_caps": []string{"CHOWN"}, "nvidia_runtime": "nvidia", "allow_runtimes": []string{"runc"},
		"infra_image": "registry.k8s.io/pause:3.3", "infra_image_pull_timeout": "5m", "image_pull_timeout": "5m", "container_exists_attempts": 5, "oom_score_adj": 0, "pull_activity_timeout": "2m",
		"pids_limit": 100, "disable_log_collection": true, "windows_allow_insecure_container_admin": false,
		"allowed_modes": map[string]any{"pid": []string{"host"}, "ipc": []string{}, "userns": []string{"host"}, "uts": []string{"host"}},
		"socket":        []any{map[string]any{"name": "default", "socket_path": "unix:///run/podman/podman.sock"}},
		"socket_path":   "unix:///run/podman/podman.sock", "recover_stopped": true, "client_http_timeout": "60s", "dns_servers": []string{"192.0.2.1"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if c.Socket != plugin.DefaultSocket || !c.Volumes || c.AuthHelper != "ecr" || c.PidsLimit != 100 || !c.Allows("pid", "host") || c.Allows("ipc", "host") || !c.Allows("uts", "host") {
		t.Errorf("%+v", c)
	}
	for _, key := range []string{"endpoint", "auth.config", "tls", "logging", "gc.container", "gc.dangling_containers", "volumes.selinuxlabel", "infra_image", "allowed_modes.userns", "socket_path", "socket { }"} {
		if !slices.Contains(c.Ignored, key) {
			t.Errorf("%s is not named as ignored: %v", key, c.Ignored)
		}
	}
	if c, err := plugin.ParseConfig(nomadtest.Encode(map[string]any{"volumes": map[string]any{"enabled": true}})); err != nil || len(c.Ignored) > 0 {
		t.Errorf("ignored %v, %v", c.Ignored, err)
	}
}
