package derive_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/derive"
)

const base = `{"architecture":"amd64","os":"linux","strange":{"x":[1]},"container":"abc","config":{"Env":["PATH=/bin","A=1"],"Cmd":["sh"],"Odd":true,"WorkingDir":"/srv"},
"rootfs":{"type":"layers","diff_ids":["sha256:0000000000000000000000000000000000000000000000000000000000000001"]},"history":[{"created_by":"first","odd":1}]}`

func made(t *testing.T, lines ...string) (map[string]any, map[string]any) {
	t.Helper()
	l := derive.Layer{
		DiffID: "sha256:0000000000000000000000000000000000000000000000000000000000000002", Created: time.Unix(1, 0).UTC(), CreatedBy: "sh -c x", Author: "me", Comment: "why",
	}
	raw, err := derive.Config([]byte(base), l, func(s derive.Settings) error {
		for _, line := range lines {
			if err := s.Instruct(line); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var top map[string]any
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}
	settings, _ := top["config"].(map[string]any)
	return top, settings
}

func text(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func TestConfigKeepsWhatItDoesNotKnow(t *testing.T) {
	top, settings := made(t)
	if text(top["strange"]) != `{"x":[1]}` || text(settings["Odd"]) != "true" || top["container"] != nil || top["author"] != "me" || top["created"] != "1970-01-01T00:00:01Z" {
		t.Errorf("%v", top)
	}
	if got := text(top["history"]); got != `[{"created_by":"first","odd":1},{"author":"me","comment":"why","created":"1970-01-01T00:00:01Z","created_by":"sh -c x"}]` {
		t.Errorf("history %s", got)
	}
	if got := text(top["rootfs"]); !strings.Contains(got, `01","sha256:`) || !strings.HasSuffix(got, `02"],"type":"layers"}`) {
		t.Errorf("rootfs %s", got)
	}
}

// TestTheHistoryIsOfTheLayers: the new entry is about the new layer, also where the layers below
// have none.
func TestTheHistoryIsOfTheLayers(t *testing.T) {
	const layers = `{"rootfs":{"type":"layers","diff_ids":["sha256:01","sha256:02"]},"history":`
	for _, c := range []struct{ history, want string }{
		{`null`, `[{"comment":"no history"},{"comment":"no history"},{"created_by":"new"}]`},
		{`[{"created_by":"a"},{"empty_layer":true}]`, `[{"created_by":"a"},{"empty_layer":true},{"comment":"no history"},{"created_by":"new"}]`},
		{`[{"created_by":"a"},{"created_by":"b"},{"created_by":"too many"}]`, `[{"created_by":"a"},{"created_by":"b"},{"created_by":"too many"},{"created_by":"new"}]`},
	} {
		raw, err := derive.Config([]byte(layers+c.history+"}"), derive.Layer{DiffID: "sha256:03", CreatedBy: "new"}, func(derive.Settings) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		var made struct{ History []map[string]any }
		if err := json.Unmarshal(raw, &made); err != nil {
			t.Fatal(err)
		}
		for _, h := range made.History {
			delete(h, "created")
		}
		if got := text(made.History); got != c.want {
			t.Errorf("%s: %s, want %s", c.history, got, c.want)
		}
	}
}

func TestInstructions(t *testing.T) {
	for _, c := range []struct{ line, member, want string }{
		{`CMD ["a", "b c"]`, "Cmd", `["a","b c"]`},
		{`cmd echo  hi`, "Cmd", `["/bin/sh","-c","echo  hi"]`},
		{`CMD=/bin/bash`, "Cmd", `["/bin/sh","-c","/bin/bash"]`},
		{`CMD`, "Cmd", `null`},
		{`ENTRYPOINT ["/run"]`, "Entrypoint", `["/run"]`},
		{`ENV A=2 B="x y" C=z\ w`, "Env", `["PATH=/bin","A=2","B=x y","C=z w"]`},
		{`ENV A some words`, "Env", `["PATH=/bin","A=some words"]`},
		{`ENV PATH=/usr/bin:$PATH B="${A}x" C='$A' D=\$A E=$NONE-$`, "Env", `["PATH=/usr/bin:/bin","A=1","B=1x","C=$A","D=$A","E=-$"]`},
		{`ENV A more $PATH`, "Env", `["PATH=/bin","A=more /bin"]`},
		{`LABEL a=$A`, "Labels", `{"a":"1"}`},
		{`LABEL a=b "c d"='e f'`, "Labels", `{"a":"b","c d":"e f"}`},
		{`EXPOSE 80 90-91/UDP`, "ExposedPorts", `{"80/tcp":{},"90/udp":{},"91/udp":{}}`},
		{`VOLUME /a /b`, "Volumes", `{"/a":{},"/b":{}}`},
		{`VOLUME ["/a b"]`, "Volumes", `{"/a b":{}}`},
		{`USER 5:6`, "User", `"5:6"`},
		{`WORKDIR sub/..//x`, "WorkingDir", `"/srv/x"`},
		{`STOPSIGNAL SIGINT`, "StopSignal", `"SIGINT"`},
		{`ONBUILD RUN x`, "OnBuild", `["RUN x"]`},
		{`SHELL ["/bin/bash", "-c"]`, "Shell", `["/bin/bash","-c"]`},
		{`HEALTHCHECK NONE`, "Healthcheck", `{"Test":["NONE"]}`},
		{`HEALTHCHECK --interval=5s --retries=2 CMD test -e /x`, "Healthcheck", `{"Interval":5000000000,"Retries":2,"Test":["CMD-SHELL","test -e /x"]}`},
		{`HEALTHCHECK CMD ["x"]`, "Healthcheck", `{"Test":["CMD","x"]}`},
	} {
		_, settings := made(t, c.line)
		if got := text(settings[c.member]); got != c.want {
			t.Errorf("%s: %s is %s, want %s", c.line, c.member, got, c.want)
		}
	}
	for _, line := range []string{"", "FROM x", "ENV", "ENV =x", `ENV A="x`, "EXPOSE 0", "EXPOSE 70000", "EXPOSE 9-8", "EXPOSE 80/icmp", "VOLUME rel", "SHELL x", "HEALTHCHECK x", "HEALTHCHECK --odd=1 CMD x", "HEALTHCHECK --retries=x CMD x", "USER a\x00b"} {
		if err := (derive.Settings{}).Instruct(line); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// FuzzConfig: a registry's config and an instruction of any content result in a readable config, or
// an error.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(base), `ENV A=1`)
	f.Add([]byte(`{"config":null,"history":null,"rootfs":{}}`), `LABEL a=b`)
	f.Add([]byte(`{"config":{"Env":5,"Labels":[],"ExposedPorts":"x"}}`), `EXPOSE 80`)
	f.Add([]byte(`null`), `ENV A=1`)
	f.Fuzz(func(t *testing.T, config []byte, line string) {
		raw, err := derive.Config(config, derive.Layer{DiffID: "sha256:00"}, func(s derive.Settings) error { return s.Instruct(line) })
		if err != nil {
			return
		}
		var top struct {
			RootFS  ocispec.RootFS    `json:"rootfs"`
			History []json.RawMessage `json:"history"`
			Config  map[string]any    `json:"config"`
		}
		if err := json.Unmarshal(raw, &top); err != nil || len(top.RootFS.DiffIDs) == 0 || len(top.History) == 0 || top.Config == nil {
			t.Errorf("%q with %q: %s, %v", config, line, raw, err)
		}
	})
}
