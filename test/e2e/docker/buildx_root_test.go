package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestBuildx builds images with buildx's driver docker-container: BuildKit runs in a privileged container of the node. BUILDX names the
// plugin, and BUILDKIT_IMAGE the archive of an image of BuildKit that `docker save` has written. Compose builds too, if
// LONGSHORE_DOCKER_DIR has its plugin.
func TestBuildx(t *testing.T) {
	plugin := handed(t, "BUILDX", "docker's plugin buildx (README.md)")
	archive := handed(t, "BUILDKIT_IMAGE", "an archive of BuildKit's image (README.md)")
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		env := r.home()
		plugins := filepath.Join(r.dir, "home", ".docker", "cli-plugins")
		if err := os.MkdirAll(plugins, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(plugin, filepath.Join(plugins, "docker-buildx")); err != nil {
			t.Fatal(err)
		}
		client, compose := "docker", false
		if dir := docker(); dir != "" {
			client = filepath.Join(dir, client)
			program := filepath.Join(dir, "..", "libexec", "docker", "cli-plugins", "docker-compose")
			if _, err := os.Stat(program); err == nil {
				compose = true
				if err := os.Symlink(program, filepath.Join(plugins, "docker-compose")); err != nil {
					t.Fatal(err)
				}
			}
		}
		run := func(args ...string) string {
			t.Helper()
			cmd := r.command(r.dir, client, args...)
			cmd.Env = append(cmd.Env, env...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("docker %q: %v\n%s", args, err, out)
			}
			return strings.TrimSpace(string(out))
		}
		write := func(name, content string) string {
			t.Helper()
			name = filepath.Join(r.dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		// buildx puts builders below a cgroup of the whole machine. The end of the node does not find those of a failed test there.
		t.Cleanup(func() {
			cmd := exec.CommandContext(context.WithoutCancel(t.Context()), client, "-H", "unix://"+r.socket, "rm", "-f", "buildx_buildkit_maker0", "buildx_buildkit_default")
			_ = cmd.Run() // a test that passed has removed them
			for _, name := range cgroupsOfBuilders(t, "") {
				_ = os.Remove(name) // it is left if the machine has other builders
			}
		})
		loaded := run("load", "-i", archive)
		image, ok := strings.CutPrefix(loaded, "Loaded image: ")
		if !ok {
			t.Fatalf("load of %s: %q, want one image with a name", archive, loaded)
		}
		// BuildKit reaches the test's registry by loopback.
		config := write("buildkitd.toml", fmt.Sprintf("[registry.\"docker.io\"]\nmirrors = [%q]\n[registry.%q]\nhttp = true\n", r.registry.Host, r.registry.Host))
		run("buildx", "create", "--name", "maker", "--driver", "docker-container", "--driver-opt", "network=host,image="+image,
			"--buildkitd-config", config, "--use")
		write("context/message", "of the context\n")
		write("context/Dockerfile", `FROM busybox AS first
RUN mkdir /data && echo of a step > /data/file
FROM busybox
ARG WHO=nobody
LABEL who=$WHO
COPY --from=first /data /data
COPY message /data/message
RUN test "$(cat /data/file)" = "of a step" && ln /data/file /data/second
WORKDIR /data
CMD ["cat", "file", "message"]
`)
		source := filepath.Join(r.dir, "context")
		run("buildx", "build", "--load", "-t", "mine", "--build-arg", "WHO=tester", source)
		if got, want := run("run", "--rm", "mine"), "of a step\nof the context"; got != want {
			t.Errorf("the built image writes %q, want %q", got, want)
		}
		if got := run("image", "inspect", "-f", "{{.Config.Labels.who}} {{.Config.WorkingDir}}", "mine"); got != "tester /data" {
			t.Errorf("the built image has label and directory %q", got)
		}
		// Both have BuildKit's attestation beside the image.
		pushed, oci := r.registry.Host+"/busybox:pushed", filepath.Join(r.dir, "oci.tar")
		run("buildx", "build", "--push", "-t", pushed, source)
		run("buildx", "build", "--provenance=mode=max", "-o", "type=oci,dest="+oci, "-t", "archived", source)
		run("load", "-i", oci)
		run("pull", pushed)
		for _, name := range []string{pushed, "archived"} {
			if got, want := run("run", "--rm", name), "of a step\nof the context"; got != want {
				t.Errorf("%s writes %q, want %q", name, got, want)
			}
		}
		// BuildKit executes only the step that has changed: the volume of its container keeps the others.
		run("buildx", "stop", "maker")
		write("context/message", "changed\n")
		out := run("buildx", "build", "--progress=plain", "--load", "-t", "mine", source)
		if !strings.Contains(out, "CACHED") {
			t.Errorf("the second build has no cached step:\n%s", out)
		}
		if got, want := run("run", "--rm", "mine"), "of a step\nchanged"; got != want {
			t.Errorf("the image that was built again writes %q, want %q", got, want)
		}
		if compose {
			write("context/compose.yaml", "services: {made: {build: .}}\n")
			if out := run("compose", "-f", filepath.Join(source, "compose.yaml"), "up", "--build"); !strings.Contains(out, "| changed") {
				t.Errorf("compose up --build has no output of the built image:\n%s", out)
			}
			run("compose", "-f", filepath.Join(source, "compose.yaml"), "down")
		}
		builder := run("inspect", "-f", "{{.Id}}", "buildx_buildkit_maker0")
		if len(cgroupsOfBuilders(t, "/*/"+builder+"/buildkit")) == 0 {
			t.Error("BuildKit has no cgroup below that of its container")
		}
		run("buildx", "rm", "maker")
		if left := cgroupsOfBuilders(t, "/*/"+builder); len(left) > 0 {
			t.Errorf("left of the builder: %q", left)
		}
		// The node refuses /grpc, and so buildx takes the same driver where no builder was created.
		run("tag", image, "moby/buildkit:buildx-stable-1")
		write("context/Dockerfile", "FROM scratch\nCOPY message /message\n")
		run("buildx", "build", "--builder", "default", "--load", "-t", "default", source)
		if got := run("image", "inspect", "-f", "{{len .RootFS.Layers}}", "default"); got != "1" {
			t.Errorf("the image of the default builder has %s layers, want 1", got)
		}
		run("rm", "-f", "buildx_buildkit_default")
		run("volume", "rm", "buildx_buildkit_default_state")
		if left := run("ps", "-aq") + run("volume", "ls", "-q"); left != "" {
			t.Errorf("left of the builder: %q", left)
		}
	})
}

// cgroupsOfBuilders returns the directories of a pattern below the cgroup of buildx's builders, in all hierarchies.
func cgroupsOfBuilders(t *testing.T, pattern string) []string {
	t.Helper()
	var found []string
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		list, err := filepath.Glob(root + "/docker/buildx" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, list...)
	}
	return found
}
