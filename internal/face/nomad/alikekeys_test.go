package nomad_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad"
)

// TestWhatAJobAsksForInVainIsSaid: the task runs, and Nomad has an event.
func TestWhatAJobAsksForInVainIsSaid(t *testing.T) {
	r := newRig(t, nil)
	next := r.listen()
	r.run(r.task("aaaaaaaa", map[string]any{"logging": map[string]any{"type": "splunk"}}))
	if e := next("in vain"); !strings.Contains(e.GetAnnotations()["warning"], "splunk") || e.GetTaskName() != "web" {
		t.Errorf("event %v", e)
	}
	r.Network.GiveOthers()
	r.run(r.task("bbbbbbbb", map[string]any{"network_mode": "bridge", "ipv4_address": "198.51.100.7"}))
	if e := next("could not give"); !strings.Contains(e.GetAnnotations()["warning"], "198.51.100.7") {
		t.Errorf("event %v", e)
	}
}

// TestATaskKnowsThePortsOfPortMap: in Nomad's variables, as with docker's driver, and in services'
// port map.
func TestATaskKnowsThePortsOfPortMap(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", map[string]any{"port_map": map[string]any{"http-in": "80"}})
	task.Env["NOMAD_PORT_http_in"] = "21000"
	task.Resources.AllocatedResources.Networks = []*nomaddriver.NetworkResource{{DynamicPorts: []*nomaddriver.NetworkPort{{Label: "http-in", Value: 21000}}}}
	resp, c := r.run(task)
	if env := r.Runtime.Spec(c.ID).Process.Env; !slices.Contains(env, "NOMAD_PORT_http_in=80") || slices.Contains(env, "NOMAD_PORT_http_in=21000") {
		t.Errorf("environment %q", env)
	}
	if ports := resp.GetNetworkOverride().GetPortMap(); ports["http-in"] != 80 {
		t.Errorf("a service finds the ports %v", ports)
	}
}

// TestAnImageIsLoaded: from a file below the task's directory local and from nowhere
// else, and for that task alone.
func TestAnImageIsLoaded(t *testing.T) {
	r := newRig(t, nil)
	pulled := false
	r.Images.Fail(func(call string) error {
		pulled = pulled || call == "Pull"
		return nil
	})
	local := filepath.Join(r.dir, allocID, "web/local")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(local, "image.tar"), `["docker.io/library/other:1", "docker.io/library/alone:1"]`)
	write(filepath.Join(r.dir, "outside.tar"), `["docker.io/library/alone:1"]`)
	for name, to := range map[string]string{"link.tar": filepath.Join(r.dir, "outside.tar"), "up": "../../.."} {
		if err := os.Symlink(to, filepath.Join(local, name)); err != nil {
			t.Fatal(err)
		}
	}
	load := func(archive string) map[string]any {
		return map[string]any{"image": "alone:1", "load": archive, "force_pull": true}
	}
	for archive, text := range map[string]string{
		"link.tar": "symbolic link", "up/outside.tar": "symbolic link", "none.tar": "no such file", ".": "it is not a file",
	} {
		r.wantStartError(r.task("bbbbbbbb", load(archive)), false, text)
	}
	task := r.task("aaaaaaaa", load("image.tar"))
	_, c := r.run(task)
	if img, err := r.As(core.OwnerNomad).Images.Get(t.Context(), string(c.Image)); err != nil || len(img.Names) != 0 {
		t.Errorf("the image of the task is %v, %v", img.Names, err)
	}
	if pulled {
		t.Error("a registry was asked")
	}
	r.wantStartError(r.task("cccccccc", map[string]any{"image": "alone:1", "image_pull_policy": "never"}), false, "alone:1")
	r.wantStartError(r.task("dddddddd", map[string]any{"image": "stranger:1", "load": "image.tar"}), false, "the archive has no image stranger:1")
	if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
		t.Error(err)
	}
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAHelperIsAskedForCredentials: the one that the plugin names, if the agent has it,
// about the image's registry.
func TestAHelperIsAskedForCredentials(t *testing.T) {
	dir := t.TempDir()
	program := func(name, script string) string {
		path := filepath.Join(dir, "docker-credential-"+name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	asked := filepath.Join(dir, "asked")
	paths := []string{
		program("good", `[ "$*" = get ] || exit 9; server=$(cat); echo "$server" >>`+asked+`
case $server in
private.example) echo '{"ServerURL": "x", "Username": "u", "Secret": "p"}' ;;
token.example) echo '{"Username": "<token>", "Secret": "t"}' ;;
empty.example) echo '{}' ;;
broken.example) echo 'the vault is sealed: hunter2' >&2; exit 3 ;;
*) echo 'credentials not found in native keychain'; exit 1 ;;
esac`),
		program("other", "echo '{}'"),
	}
	type credentials struct{ user, password, token string }
	for _, tc := range []struct {
		name, helper, image string
		more                map[string]any
		want                credentials
		text                string // of a failure
		asked               string
	}{
		{name: "has them", helper: "good", image: "private.example/a:1", want: credentials{"u", "p", ""}, asked: "private.example"},
		{name: "a token", helper: "good", image: "token.example/a:1", want: credentials{"", "", "t"}, asked: "token.example"},
		{name: "has none", helper: "good", image: "public.example/a:1", asked: "public.example"},
		{name: "docker hub", helper: "good", image: "private:1", asked: "https://index.docker.io/v1/"},
		{name: "the job's own", helper: "good", image: "private.example/b:1", more: map[string]any{"auth": map[string]any{"username": "job", "password": "s"}}, want: credentials{"job", "s", ""}},
		{name: "empty", helper: "good", image: "empty.example/a:1", text: "no credentials", asked: "empty.example"},
		{name: "fails", helper: "good", image: "broken.example/a:1", text: "exit status 3", asked: "broken.example"},
		{name: "fails softly", helper: "good", image: "broken.example/b:1", more: map[string]any{"auth_soft_fail": true}, asked: "broken.example"},
		{name: "not permitted", helper: "sh", image: "private.example/c:1", text: "face.nomad.credential_helpers"},
		{name: "not named", image: "private.example/d:1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_ = os.Remove(asked)
			config := map[string]any{}
			if tc.helper != "" {
				config["auth"] = map[string]any{"helper": tc.helper}
			}
			r := newRigWith(t, config, nomad.Config{CredentialHelpers: paths})
			r.AddImage(tc.image, ocispec.ImageConfig{Env: []string{"PATH=/bin"}}, nil)
			var got core.PullOptions
			r.Images.OnPull = func(o core.PullOptions) { got = o }
			task := r.task("aaaaaaaa", map[string]any{"image": tc.image, "force_pull": true})
			if tc.more != nil {
				tc.more["image"], tc.more["force_pull"] = tc.image, true
				task = r.task("aaaaaaaa", tc.more)
			}
			if tc.text != "" {
				_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
				if wantError(t, err, tc.text); err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("a job is told what the helper says: %v", err)
				}
			} else {
				r.run(task)
			}
			if have := (credentials{got.Username, got.Password, got.Token}); have != tc.want {
				t.Errorf("pulled with %v, want %v", have, tc.want)
			}
			b, _ := os.ReadFile(asked)
			if have := strings.TrimSpace(string(b)); have != tc.asked {
				t.Errorf("asked about %q, want %q", have, tc.asked)
			}
		})
	}
}

// TestAHelperThatHangs ends with the pull's time.
func TestAHelperThatHangs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "docker-credential-slow")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRigWith(t, map[string]any{"auth": map[string]any{"helper": "slow"}, "image_pull_timeout": (50 * time.Millisecond).String()}, nomad.Config{CredentialHelpers: []string{path}})
	r.wantStartError(r.task("aaaaaaaa", map[string]any{"force_pull": true}), true, "the pull was given up")
}

// TestHelpersAreNamedByTheOperator: by their paths, each name once.
func TestHelpersAreNamedByTheOperator(t *testing.T) {
	for _, tc := range []struct {
		paths []string
		good  bool
	}{
		{[]string{"/usr/bin/docker-credential-ecr-login", "/opt/docker-credential-pass"}, true},
		{[]string{"docker-credential-pass"}, false},
		{[]string{"/bin/sh"}, false},
		{[]string{"/bin/docker-credential-"}, false},
		{[]string{"/a/docker-credential-pass", "/b/docker-credential-pass"}, false},
	} {
		c := nomad.DefaultConfig()
		c.CredentialHelpers = tc.paths
		if err := c.Validate(); (err == nil) != tc.good {
			t.Errorf("%v: %v", tc.paths, err)
		}
	}
}
