package plugin_test

import (
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
