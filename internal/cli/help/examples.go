// Package help has additional documentation of commands: an example for each, and manual pages.
package help

import (
	"strings"

	"github.com/spf13/cobra"
)

// exampleOf maps the path of each command to an example. A command of a group without an entry has the example of its
// short form.
func exampleOf() map[string]string {
	return map[string]string{
		"": "longshore run --rm -it busybox sh\nlongshore ps -a\nlongshore logs -f web",

		"run":              "longshore run --rm -it busybox sh\nlongshore run -d --name web -p 8080:80 -v site:/usr/share/nginx/html nginx\nlongshore run --rm -m 256m --cpus 0.5 -e MODE=test alpine env",
		"create":           "longshore create --name job -v data:/data alpine tar -cf /data/x.tar /etc\nlongshore start -a job",
		"artifact":         "longshore artifact add localhost/model:v1 model.gguf\nlongshore artifact ls",
		"artifact add":     "longshore artifact add registry.example/models/small:v1 model.gguf config.json",
		"artifact extract": "longshore artifact extract --title model.gguf registry.example/models/small:v1 ./model.gguf",
		"artifact inspect": "longshore artifact inspect -f '{{json .Record.files}}' registry.example/models/small:v1",
		"artifact ls":      "longshore artifact ls",
		"artifact pull":    "longshore artifact pull registry.example/models/small:v1",
		"artifact push":    "longshore artifact push registry.example/models/small:v1",
		"artifact rm":      "longshore artifact rm registry.example/models/small:v1",

		"up":         "longshore up -d\nlongshore up -f compose.yaml -f production.yaml -d --wait\nlongshore up -d --scale web=3",
		"down":       "longshore down\nlongshore down -f compose.yaml -v --remove-orphans",
		"ps":         "longshore ps -f compose.yaml\nlongshore ps -a\nlongshore ps --filter status=exited --format '{{.Names}} {{.ExitCode}}'\nlongshore ps -q --filter label=tier=web",
		"sandboxes":  "longshore sandboxes --owner cri",
		"logs":       "longshore logs -f --tail 20 web\nlongshore logs --since 10m -t web db",
		"exec":       "longshore exec -it web sh\nlongshore exec -u www-data web id",
		"attach":     "longshore attach --no-stdin web",
		"inspect":    "longshore inspect web\nlongshore inspect -f '{{.State.Status}} {{.NetworkSettings.IPAddress}}' web\nlongshore inspect -f '{{json .Mounts}}' web",
		"why":        "longshore why --start web",
		"start":      "longshore start web db\nlongshore start -a job",
		"stop":       "longshore stop web\nlongshore stop -t 30 web db",
		"restart":    "longshore restart -t 5 web",
		"kill":       "longshore kill -s HUP web",
		"pause":      "longshore pause web",
		"sleep":      "longshore sleep web",
		"wake":       "longshore wake web",
		"checkpoint": "longshore checkpoint web\nlongshore checkpoint --leave-running --export web.tar web",
		"restore":    "longshore restore web\nlongshore restore --name web2 web.tar",
		"resume":     "longshore resume web\nlongshore unpause web",
		"rename":     "longshore rename web web-old",
		"update":     "longshore update -m 512m --memory-swap 1g web\nlongshore update --cpus 1.5 --pids 200 web db",
		"rm":         "longshore rm web\nlongshore rm -f -v web db",
		"wait":       "longshore wait job",
		"stats":      "longshore stats\nlongshore stats --no-stream web db",
		"top":        "longshore top web",
		"unit":       "longshore unit web > /etc/systemd/system/web.service\nlongshore unit --new --restart always web",
		"port":       "longshore port web\nlongshore port web 80/tcp",
		"diff":       "longshore diff web",
		"commit":     "longshore commit web web:debugged\nlongshore commit -c 'CMD [\"nginx\"]' -m 'with tools' web example.com/web:2",

		"ui": "longshore ui\nlongshore ui --actions --listen 127.0.0.1:8021",

		"images":  "longshore images\nlongshore images --digests 'docker.io/library/*'\nlongshore images --format '{{.Repository}}:{{.Tag}} {{.Size}}'",
		"pull":    "longshore pull redis:7\nlongshore pull --platform linux/arm64 alpine",
		"push":    "longshore push registry.example.com/team/web:1.2",
		"login":   "longshore login registry.example.com\nprintf %s \"$TOKEN\" | longshore login -u ci --password-stdin registry.example.com",
		"logout":  "longshore logout registry.example.com",
		"tag":     "longshore tag web:latest registry.example.com/team/web:1.2",
		"rmi":     "longshore rmi redis:6",
		"import":  "longshore import images.tar\nlongshore import -c 'CMD [\"sh\"]' rootfs.tar.gz example.com/root:1\nlongshore container export web | longshore import - web:flat",
		"load":    "longshore load -i images.tar\nzcat images.tar.gz | longshore load",
		"export":  "longshore export -o redis.tar redis:7\nlongshore save redis:7 nginx | ssh other longshore load",
		"history": "longshore history nginx\nlongshore history --no-trunc --format '{{.CreatedBy}}' nginx",
		"prune":   "longshore prune -a\nlongshore prune --containers --volumes",

		"volume":         "longshore volume ls",
		"volume create":  "longshore volume create data\nlongshore volume create media --opt type=nfs --opt device=nas:/media --opt o=ro,nfsvers=4.2",
		"volume ls":      "longshore volume ls -q -f dangling=true",
		"volume inspect": "longshore volume inspect -f '{{.Mountpoint}}' data",
		"volume rm":      "longshore volume rm data",
		"volume prune":   "longshore volume prune -f",

		"why disk":           "longshore why disk",
		"audit":              "longshore audit -n 20 web",
		"egress":             "longshore egress log web",
		"egress show":        "longshore egress show web",
		"egress set":         "longshore egress set web api.example.com:443 '*.packages.example'",
		"egress log":         "longshore egress log web",
		"egress learn":       "longshore egress learn web",
		"network":            "longshore network ls",
		"network create":     "longshore network create back\nlongshore run -d --name db --network back redis",
		"network ls":         "longshore network ls -q",
		"network inspect":    "longshore network inspect -f '{{json .IPAM.Config}}' back",
		"network disconnect": "longshore network disconnect back web",
		"network rm":         "longshore network rm back",
		"network prune":      "longshore network prune",

		"container":         "longshore container ls -a",
		"container inspect": "longshore container inspect -f '{{.State.Pid}}' web",
		"container prune":   "longshore container prune -f",
		"image":             "longshore image ls",
		"image inspect":     "longshore image inspect -f '{{.Config.Cmd}}' nginx",
		"image prune":       "longshore image prune -a -f",
		"system":            "longshore system df",
		"system df":         "longshore system df -v",
		"system prune":      "longshore system prune -a --volumes -f",

		"info":               "longshore info\nlongshore info -f '{{.CgroupVersion}}'",
		"events":             "longshore events --since 1h\nlongshore events --filter event=die --format '{{.Name}} {{.ExitCode}}'",
		"doctor":             "longshore doctor",
		"upgrade":            "longshore upgrade",
		"grants":             "longshore grants check program.yaml",
		"grants check":       "longshore grants check --policy policy.yaml --owner cri --namespace web program.yaml",
		"check":              "longshore check",
		"repair":             "systemctl stop longshore && longshore repair",
		"config":             "longshore config show",
		"config default":     "longshore config default > /etc/longshore/config.toml",
		"config show":        "longshore config show --live",
		"migrate":            "longshore migrate containerd",
		"migrate containerd": "longshore migrate containerd --config /etc/containerd/config.toml >/etc/longshore/conf.d/60-migrated.toml",
		"migrate crio":       "longshore migrate crio --write",
		"config check":       "longshore config check --config new.toml",
		"swarm":              "longshore swarm status",
		"swarm join":         "longshore swarm join --token-file token manager.example.com:2377",
		"swarm leave":        "longshore swarm leave",
		"swarm status":       "longshore swarm status --json",
		"oci":                "longshore oci run -b /tmp/bundle name",
		"version":            "longshore version --client",
		"debug":              "longshore debug dump",
		"man":                "longshore man /usr/local/share/man/man1",
		"debug dump":         "longshore debug dump -o report.tar.gz",
		"debug plan":         "longshore debug plan web",
		"agent":              "longshore agent --log-level debug\nlongshore --root /srv/longshore agent",
		"teardown":           "systemctl stop longshore && longshore teardown --grace 30s",
		"guest":              "longshore guest --help",

		"help":                  "longshore help run",
		"completion":            "source <(longshore completion bash)",
		"completion bash":       "longshore completion bash > /usr/share/bash-completion/completions/longshore",
		"completion zsh":        "longshore completion zsh > /usr/share/zsh/vendor-completions/_longshore",
		"completion fish":       "longshore completion fish > ~/.config/fish/completions/longshore.fish",
		"completion powershell": "longshore completion powershell",
	}
}

// SetExamples sets the examples of all commands.
func SetExamples(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	examples := exampleOf()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Example == "" {
			path := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), root.Name()), " ")
			text, ok := examples[path]
			if _, short, grouped := strings.Cut(path, " "); !ok && grouped {
				switch path {
				case "container ls":
					short = "ps"
				case "image ls":
					short = "images"
				case "image rm":
					short = "rmi"
				}
				text = strings.ReplaceAll(examples[short], root.Name()+" "+short, root.Name()+" "+path)
			}
			if text != "" {
				cmd.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}
