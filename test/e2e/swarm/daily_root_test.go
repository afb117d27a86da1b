package swarm

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// typed is a command of a Swarm's users, and its output.
type typed struct {
	args string // one word each, but for the text between apostrophes; REF, NODE, TASK and DIR are replaced
	want string // a regular expression of its output, or of its error when it begins with "! "
}

// runAll runs commands one after the other.
func (d *door) runAll(replace map[string]string, all []typed) {
	d.t.Helper()
	word := regexp.MustCompile(`'[^']*'|\S+`)
	for _, c := range all {
		line := c.args
		for from, to := range replace {
			line = strings.ReplaceAll(line, from, to)
		}
		var args []string
		for _, w := range word.FindAllString(line, -1) {
			args = append(args, strings.Trim(w, "'"))
		}
		out, err := d.run("some-data", args...)
		want, refused := strings.CutPrefix(c.want, "! ")
		for from, to := range replace {
			want = strings.ReplaceAll(want, from, regexp.QuoteMeta(to))
		}
		switch {
		case refused && err == nil:
			d.t.Errorf("docker %s: it should be refused: %s", line, out)
		case refused:
			out = err.Error()
		case err != nil:
			d.t.Errorf("docker %s: %v", line, err)
			continue
		}
		if !regexp.MustCompile(`(?s)` + want).MatchString(out) {
			d.t.Errorf("docker %s: got %q, want %q", line, out, want)
		}
	}
}

// TestWhatASwarmsUsersType: docker's command line works for a Swarm beyond the life of a service and a stack:
// labels, filters, formats and the forms for people. A hub's refusals name the feature.
func TestWhatASwarmsUsersType(t *testing.T) {
	long(t) // docker's command line waits for five seconds after each update
	beside(t, func(t *testing.T) {
		d := newDoor(t)
		d.says("Ready", "node", "ls", "--filter", "role=worker", "--format", "{{.Status}}")
		node := d.must("", "node", "ls", "--filter", "role=worker", "--quiet")
		dir := filepath.Dir(d.socket)
		file := filepath.Join(dir, "day.yaml")
		stack := `
version: "3.8"
services:
  web: {image: ` + d.ref + `, command: [sleep, "100000"], stop_grace_period: 10ms, networks: [default], secrets: [shared], deploy: {labels: {team: one}}}
  job: {image: ` + d.ref + `, command: [sleep, "100000"], stop_grace_period: 10ms, networks: [default], deploy: {mode: global}}
networks: {default: {external: true, name: bridge}}
secrets: {shared: {external: true}}
`
		if err := os.WriteFile(file, []byte(stack), 0o600); err != nil {
			t.Fatal(err)
		}
		replace := map[string]string{"REF": d.ref, "NODE": node, "DIR": dir}
		d.runAll(replace, []typed{
			{"info --format '{{.Swarm.LocalNodeState}} {{.Swarm.ControlAvailable}} {{.Swarm.Nodes}}'", `^active true 2$`},
			{"info", `Swarm: active.* Is Manager: true`},
			{"version", `Server:.*Version`},
			{"node ls", `ID +HOSTNAME +STATUS.*Ready.*Leader`},
			{"node update --label-add site=a --label-add rack=1 NODE", `^NODE`},
			{"node update --label-rm rack NODE", ``},
			{"node inspect --pretty NODE", `Labels:\s+- site=a\n.*State:\s+Ready`},
			{"node inspect --format '{{.Spec.Labels}}' NODE", `^map\[site:a\]$`},
			{"node inspect self --format '{{.ManagerStatus.Leader}}'", `^true$`},
			{"node ls --filter node.label=site=a --filter membership=accepted --quiet", `^NODE$`},
			{"node ls --filter node.label=site=b --quiet", `^$`},
			{"node ps NODE", `^ID`},
			{"node promote NODE", `! manager`},
			{"node demote NODE", ``},
			{"node rm NODE", `! `},
			{"swarm join-token worker", `docker swarm join --token SWMTKN-1-\S+ \S+:4000`},
			{"swarm join-token manager", ``},
			{"swarm ca", `BEGIN CERTIFICATE`},
			{"swarm update --task-history-limit 3", `! `},
			{"swarm init", `! `},
			{"swarm leave", `! `},
			{"swarm unlock-key", `! `},

			{"secret create --label a=b shared -", `^\w{25}$`},
			{"secret create shared -", `! already|exists|conflict`},
			{"secret ls", `ID +NAME.*shared`},
			{"secret ls --filter label=a=b --format {{.Name}}", `^shared$`},
			{"secret ls --filter name=other --quiet", `^$`},
			{"secret inspect --pretty shared", `Name:\s+shared\n.*a=b`},
			{"secret rm other", `! `},
			{"config create --label a=b conf -", `^\w{25}$`},
			{"config ls --filter name=conf --format '{{.Name}} {{.Labels}}'", `^conf a=b$`},
			{"config inspect --pretty conf", `some-data`},

			{"service create --name web --label team=one --container-label c=d --constraint node.labels.site==a --replicas 2 --limit-memory 32M --reserve-memory 8M --restart-condition on-failure " +
				"--mount type=volume,source=data,target=/data --mount type=tmpfs,target=/scratch --env A=1 --hostname '{{.Node.Hostname}}' --workdir /tmp --log-driver json-file --log-opt max-size=1m " +
				"--config conf --stop-grace-period 10ms --init --health-cmd true --health-interval 1s --update-monitor 100ms --rollback-monitor 100ms --with-registry-auth REF sh -c 'echo one; echo two; exec sleep 100000'", `\w{25}`},
			{"service ls", `ID +NAME +MODE +REPLICAS.*web +replicated +2/2`},
			{"service ls --filter label=team=one --filter mode=replicated --format {{.Name}}", `^web$`},
			{"service ls --filter mode=global --quiet", `^$`},
			{"service inspect --pretty web", `Name:\s+web\n.*team=one.*Replicas:\s+2.*Constraints:.*node.labels.site==a.*Memory:\s+32MiB`},
			{"service inspect --format '{{.Spec.Labels}} {{json .Spec.TaskTemplate.LogDriver.Name}}' web", `^map\[team:one\] "json-file"$`},
			{"service ps web", `ID +NAME +IMAGE.*web\.1.*Running`},
			{"service ps --filter name=web.2 --filter node=NODE --no-trunc --format '{{.Name}} {{.Image}}' web", `^web\.2 REF`},
			{"service ps --filter desired-state=shutdown --quiet web", `^$`},
			{"service logs --tail 1 --no-task-ids --timestamps web", `^2\S+Z.*two`},
			{"service logs --raw --since 1h web", `one\ntwo`},
			{"service update --force --quiet web", `web`},
			{"service update --label-add more=x --label-rm team --limit-memory 64M --env-add B=2 --env-rm A --constraint-add node.platform.os==linux --mount-rm /scratch --config-rm conf --update-order start-first --quiet web", `web`},
			{
				"service inspect --format '{{.Spec.Labels}} {{.Spec.TaskTemplate.ContainerSpec.Env}} {{len .Spec.TaskTemplate.ContainerSpec.Mounts}} {{.Spec.TaskTemplate.Placement.Constraints}} {{.Spec.UpdateConfig.Order}}' web",
				`^map\[more:x\] \[B=2\] 1 \[node.labels.site==a node.platform.os==linux\] start-first$`,
			},
			{"service update --rollback --quiet web", `web`},
			{"service inspect --format '{{.Spec.Labels}} {{.Spec.TaskTemplate.ContainerSpec.Env}}' web", `^map\[team:one\] \[A=1\]$`},
			{"config rm conf", `! in use by the following services: web`},
			{"inspect --format '{{.Spec.Name}}' web", `^web$`},
			{"service create --mode replicated-job REF", `! job`},
			{"service create --generic-resource gpu=1 REF", `! generic`},
			{"service create --detach --quiet --replicas 0 REF", `^\w{25}$`},
			{"service ls --filter name=busybox- --format {{.Replicas}}", `^0/0$`},
			{"service create --placement-pref spread=node.labels.site REF", `! preference`},
			{"service create --network other REF", `! other`},

			{"network ls", `bridge.*host`},
			{"network ls --filter driver=host --format {{.Name}}", `^host$`},
			{"network inspect --format {{.Driver}} host", `^host$`},
			{"network create --driver overlay other", `! a hub makes no networks \(driver overlay\)`},
			{"ps", `! node`},
			{"volume ls", `! node`},

			{"stack deploy --resolve-image never --compose-file DIR/day.yaml day", `day_web`},
			{"stack ls", `NAME +SERVICES.*day +2`},
			{"stack services --filter name=day_job --format '{{.Name}} {{.Mode}}' day", `^day_job global$`},
			{"stack services day", `ID +NAME.*day_web`},
			{"stack ps --filter desired-state=running --no-trunc day", `day_web\.1`},
			{"secret rm shared", `! in use by the following services: day_web`},
		})
		if out := d.hub.Must("", "diff", "--name", "day", "-f", file, "--json"); strings.Count(out, `"change": "none"`) != 2 || strings.Count(out, `"change"`) != 2 {
			t.Errorf("after docker stack deploy, apply would change: %s", out)
		}
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(stack, "  job:", "  x-job:")), 0o600); err != nil {
			t.Fatal(err)
		}
		replace["TASK"] = d.must("", "service", "ps", "--quiet", "--filter", "desired-state=running", "--no-trunc", "day_web")
		d.runAll(replace, []typed{
			{"inspect --format {{.NodeID}} TASK", `^NODE$`},
			{"service logs TASK", ``},
			{"stack rm day", `Removing service day_web`},
			{"service scale web=0", `web`},
			{"service rm web", `web`},
			{"config rm conf", `conf`},
			{"secret rm shared", `shared`},
		})
		before := d.must("", "swarm", "join-token", "--quiet", "worker")
		if after := d.must("", "swarm", "join-token", "--quiet", "--rotate", "worker"); after == before || after != d.hub.Must("", "token") {
			t.Errorf("the token was %s and is %s", before, after)
		}
		roottest.Eventually(t, "nothing runs", func() bool {
			return len(d.hub.Tasks("web"))+len(d.hub.Tasks("day_web"))+len(d.hub.Tasks("day_job")) == 0
		})
		d.runAll(replace, []typed{{"node rm --force NODE", ``}, {"node ls --filter role=worker --quiet", `^$`}})
	})
}
