package image

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// TestADamagedCheckIsLeftOut: a malformed value that only Docker writes into configs does not
// make the image unusable.
func TestADamagedCheckIsLeftOut(t *testing.T) {
	for text, want := range map[string]*core.HealthCheck{
		`{"config":{"Cmd":["a"],"Healthcheck":{"Test":["NONE"]}}}`:                       {Test: []string{"NONE"}},
		`{"config":{"Cmd":["a"],"Healthcheck":{"Test":"curl"},"Shell":["sh"]}}`:          nil,
		`{"config":{"Cmd":["a"],"Healthcheck":{"Test":["CMD"],"Interval":"5 minutes"}}}`: nil,
		`{"config":{"Cmd":["a"],"Shell":7}}`:                                             nil,
		`{"config":{"Cmd":["a"]}}`:                                                       nil,
	} {
		var c imageConfig
		if err := c.read([]byte(text)); err != nil || len(c.Config.Cmd) != 1 {
			t.Errorf("%s: command %q, %v", text, c.Config.Cmd, err)
		}
		switch got := c.docker.Healthcheck; {
		case got == nil && want == nil:
		case got == nil || want == nil || got.Test[0] != want.Test[0]:
			t.Errorf("%s: check %+v, want %+v", text, got, want)
		}
		if want == nil && c.docker.Shell != nil {
			t.Errorf("%s: shell %q", text, c.docker.Shell)
		}
	}
	if err := new(imageConfig).read([]byte("{")); err == nil {
		t.Error("a config that is no JSON was read")
	}
}
