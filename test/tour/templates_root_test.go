package tour

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTemplatesBesideDocker makes the objects of the table of templates with Longshore and with dockerd 28, of the packages
// in LONGSHORE_DOCKER_DIR, and compares both outputs of each template. With LONGSHORE_UPDATE=1 it writes the records for
// TestTemplates, and docker's members for TestMembersOfDocker.
func TestTemplatesBesideDocker(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		docker := dockerTool(t)
		dir := prepare(t, archive(t))
		n := nodetest.Start(t, nodetest.Options{})
		ours := tool{dir: dir, command: filepath.Join(nodetest.Bin(t), "longshore"), env: []string{"LONGSHORE_SOCKET=" + filepath.Join(n.State, "control.sock")}}
		table := readTemplates(t)
		for _, line := range table.setup {
			for _, x := range []tool{ours, docker} {
				if got := x.run(t, line); got.status != 0 {
					t.Fatalf("%s: %s: status %d\n%s%s", x.command, line, got.status, got.out, got.errors)
				}
			}
		}
		same := 0
		for _, r := range table.rows {
			line := strings.Replace(commandOf(t, r.subject), "TEMPLATE", "'"+r.template+"'", 1)
			for _, c := range []struct {
				tool
				want string
			}{{ours, r.ours}, {docker, r.docker}} {
				got := c.run(t, line)
				if out := strings.TrimSuffix(got.out, "\n"); got.status != 0 || !fits(c.want, out) {
					t.Errorf("line %d: %s: %s: status %d\n%q, want\n%q\n%s", r.number, c.command, line, got.status, out, c.want, got.errors)
				}
			}
			if r.ours == r.docker {
				same++
			}
		}
		t.Logf("%d of %d templates have the same output", same, len(table.rows))
		for _, x := range []tool{ours, docker} {
			got := x.run(t, "$T inspect -s -f '{{.SizeRw}} {{.SizeRootFs}}' plain")
			if !fits(`$number $number\n`, got.out) {
				t.Errorf("%s: sizes: %q %s", x.command, got.out, got.errors)
			}
		}
		members := map[string]map[string]string{}
		for _, subject := range []string{"web", "box", "app", "data"} {
			line := strings.Replace(commandOf(t, subject), "TEMPLATE", "'{{json .}}'", 1)
			members[subject] = membersOf(t, []byte(docker.run(t, line).out))
			mine := membersOf(t, []byte(ours.run(t, line).out))
			for path, kind := range members[subject] {
				if differs[path] == "" && !alike(mine[path], kind) {
					t.Errorf("%s: %s is %q in docker's document and %q in ours", subject, path, kind, mine[path])
				}
			}
		}
		if os.Getenv("LONGSHORE_UPDATE") != "" {
			write(t, "members", members)
			records(t, ours)
		}
		ours.run(t, "$T rm -f web plain over made loop")
		n.Check()
	})
}

// commandOf returns the command line that fills TEMPLATE for a subject.
func commandOf(t *testing.T, subject string) string {
	t.Helper()
	switch subject {
	case "web", "plain", "over", "made", "loop":
		return "$T inspect -f TEMPLATE " + subject
	case "box":
		return "$T image inspect -f TEMPLATE box"
	case "app":
		return "$T network inspect -f TEMPLATE app"
	case "data":
		return "$T volume inspect -f TEMPLATE data"
	case "info", "version":
		return "$T " + subject + " -f TEMPLATE"
	case "ps":
		return "$T ps --filter name=^web$ --format TEMPLATE"
	case "images":
		return "$T images --format TEMPLATE box"
	case "networks":
		return "$T network ls --filter name=app --format TEMPLATE"
	case "volumes":
		return "$T volume ls --filter name=data --format TEMPLATE"
	}
	t.Fatalf("the table of templates has a subject %q that no command shows", subject)
	return ""
}

// dockerTool starts dockerd 28 in namespaces of its own, and returns docker's command line for it.
func dockerTool(t *testing.T) tool {
	t.Helper()
	_, _, x := startDocker(t)
	t.Cleanup(func() { x.run(t, "$T rm -f web plain over made loop") })
	return x
}

// startDocker starts dockerd 28 in namespaces of its own, with more flags. It returns the directory of
// all that the daemon keeps, and docker's command line for it.
func startDocker(t *testing.T, flags ...string) (d *dockerd.Daemon, home string, x tool) {
	t.Helper()
	packages, home := nodetest.DockerHome(t)
	d, err := dockerd.Start(dockerd.Options{
		Packages: packages, Home: home, Flags: append([]string{"--cgroup-parent", roottest.Cgroup(t)}, flags...),
		Wrap: func(argv ...string) []string {
			return append([]string{"unshare", "--net", "/bin/sh", "-c", `ip link set lo up; exec "$0" "$@"`}, argv...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	if err := d.Answers(ctx); err != nil {
		if why := d.Lacks(); why != "" {
			t.Skipf("dockerd does not run on this machine: %s", why)
		}
		t.Fatal(err)
	}
	var version struct{ Version string }
	if err := d.Get(ctx, "/version", &version); err != nil {
		t.Fatal(err)
	}
	var major int
	if _, err := fmt.Sscanf(version.Version, "%d.", &major); err != nil || major != 28 {
		t.Skipf("this is dockerd %s: the table has the output of dockerd 28 (hack/dockerd.sh DIR forky)", version.Version)
	}
	return d, home, tool{dir: prepare(t, archive(t)), command: strings.Join(dockerd.CLI(packages), " ") + " --host unix://" + home + "/sock"}
}

// records writes the agent's records of the objects, without the system call filter and the capabilities, and with the
// paths of an ordinary node.
func records(t *testing.T, ours tool) {
	t.Helper()
	for subject, line := range map[string]string{
		"web": "inspect web", "plain": "inspect plain", "over": "inspect over", "made": "inspect made", "loop": "inspect loop", "box": "image inspect box", "app": "network inspect app",
		"data": "volume inspect data", "ps": "ps --size --filter name=^web$ --json", "images": "images --json", "info": "info --json", "version": "version --json",
	} {
		var doc any
		if err := json.Unmarshal([]byte(ours.run(t, "$T "+line).out), &doc); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if list, ok := doc.([]any); ok && len(list) > 0 {
			doc = list[0]
		}
		if of, ok := doc.(map[string]any); ok && of["Record"] != nil {
			doc = of["Record"]
		} else if ok && of["agent"] != nil {
			doc = of["agent"]
		}
		if r, ok := doc.(map[string]any); ok {
			if spec, ok := r["spec"].(map[string]any); ok {
				delete(spec["linux"].(map[string]any), "seccomp")        //nolint:forcetypeassert // of our own record
				delete(spec["process"].(map[string]any), "capabilities") //nolint:forcetypeassert // as above
			}
		}
		write(t, subject, doc)
	}
}

// ownTexts are the texts of the machine where a record is made, and those of an ordinary node.
var ownTexts = []struct {
	old  *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`/tmp/longshore-node-[0-9]+`), "/node"},
	{regexp.MustCompile(`"[^"]*/bin/longshore-keeper"`), `"/usr/bin/longshore-keeper"`},
	{regexp.MustCompile(`"[^"]*/site"`), `"/srv/site"`},
	{regexp.MustCompile(`"[^"]*/site:/host:ro"`), `"/srv/site:/host:ro"`},
	{regexp.MustCompile(`"hostname": "[^"]*",\n  "images"`), "\"hostname\": \"node\",\n  \"images\""},
	{regexp.MustCompile(`"kernel": "[^"]*"`), `"kernel": "6.1.0-40-amd64"`},
}

func write(t *testing.T, name string, v any) {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	plain := append(text, '\n')
	for _, own := range ownTexts {
		plain = own.old.ReplaceAll(plain, []byte(own.with))
	}
	if err := os.WriteFile(filepath.Join(templatesDir, name+".json"), plain, 0o644); err != nil {
		t.Fatal(err)
	}
}
