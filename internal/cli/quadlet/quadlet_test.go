package quadlet

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/longshore/longshore/internal/cli/unitfile"
)

// generate translates files with the program /usr/bin/longshore.
func generate(files ...File) Result {
	return Generate(files, Options{Program: "/usr/bin/longshore", Exists: func(path string) bool { return path == "/dev/null" }})
}

// text returns a result in one text: units, links and problems.
func (r Result) text() string {
	var b strings.Builder
	for _, u := range r.Units {
		b.WriteString("== " + u.Name + "\n" + u.Text)
	}
	for _, l := range r.Links {
		b.WriteString("link " + l.Path + " -> " + l.Target + "\n")
	}
	for _, p := range r.Problems {
		kind := "note "
		if p.Refused {
			kind = "refused "
		}
		b.WriteString(kind + p.Error.Error() + "\n")
	}
	return b.String()
}

// TestShapes compares the results of whole directories of files with the expected ones. LONGSHORE_UPDATE=1 writes them.
func TestShapes(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) < 5 {
		t.Fatalf("%v, %v", archives, err)
	}
	for _, name := range archives {
		t.Run(filepath.Base(name), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var files []File
			want := -1
			for i, f := range a.Files {
				if f.Name == "want" {
					want = i
					continue
				}
				files = append(files, File{Path: "/etc/containers/systemd/" + f.Name, Data: f.Data})
			}
			if want < 0 {
				t.Fatal("there is no file want")
			}
			got := generate(files...).text()
			if got == string(a.Files[want].Data) {
				return
			}
			if os.Getenv("LONGSHORE_UPDATE") == "" {
				t.Fatalf("got:\n%s\nwant:\n%s", got, a.Files[want].Data)
			}
			a.Files[want].Data = []byte(got)
			if err := os.WriteFile(name, txtar.Format(a), 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// examples have a value for each key that is not refused, and a text of the unit that it makes. An empty text is for keys
// without an effect on the unit.
var examples = map[string][2]string{
	"Container.AddCapability": {"NET_ADMIN CAP_SYS_TIME", "--cap-add=NET_ADMIN --cap-add=CAP_SYS_TIME"}, "Container.AddDevice": {"-/dev/null:/dev/n", "--device=/dev/null:/dev/n"},
	"Container.AddHost": {"a:1.2.3.4", "--add-host=a:1.2.3.4"}, "Container.Annotation": {`"a=b c"`, `"--annotation=a=b c"`}, "Container.AppArmor": {"p", "--security-opt=apparmor=p"},
	"Container.AutoUpdate": {"registry", ""}, "Container.CgroupsMode": {"split", ""}, "Container.ContainerName": {"web", "run --name=web "},
	"Container.DNS": {"1.1.1.1", "--dns=1.1.1.1"}, "Container.DNSOption": {"ndots:1", "--dns-option=ndots:1"}, "Container.DNSSearch": {"x.y", "--dns-search=x.y"},
	"Container.DropCapability": {"all", "--cap-drop=all"}, "Container.Entrypoint": {`["/a", "-b"]`, "--entrypoint=/a example.com/x -b"},
	"Container.Environment": {`A=1 "B=2 3" A=4`, `"--env=B=2 3" --env=A=4 `}, "Container.EnvironmentFile": {"x.env", "--env-file=/q/x.env"},
	"Container.Exec": {`sh -c 'echo "$A"; true'`, `example.com/x sh -c "echo \"$A\"; true"`}, "Container.ExposeHostPort": {"50-59", "--expose=50-59"}, "Container.Group": {"5", "--user=4:5"},
	"Container.GroupAdd": {"6", "--group-add=6"}, "Container.HealthCmd": {`curl -f "http://x" || exit 1`, `"--health-cmd=curl -f \"http://x\" || exit 1"`},
	"Container.HealthInterval": {"2m", "--health-interval=2m"}, "Container.HealthLogDestination": {"local", ""}, "Container.HealthMaxLogCount": {"5", ""}, "Container.HealthMaxLogSize": {"5", ""},
	"Container.HealthOnFailure": {"kill", "--health-on-failure=kill"}, "Container.HealthRetries": {"5", "--health-retries=5"}, "Container.HealthStartPeriod": {"1m", "--health-start-period=1m"},
	"Container.HealthTimeout": {"20s", "--health-timeout=20s"}, "Container.HostName": {"h", "--hostname=h"}, "Container.HttpProxy": {"false", ""}, "Container.IP": {"10.0.0.2", "--ip=10.0.0.2"},
	"Container.IP6": {"fd00::2", "--ip6=fd00::2"}, "Container.Image": {"example.com/x", " example.com/x\n"}, "Container.Label": {`a=b "c=d e"`, `--label=a=b "--label=c=d e"`},
	"Container.LogDriver": {"none", "StandardOutput=null\n"}, "Container.LogOpt": {"max-size=1m", "--log-opt=max-size=1m"}, "Container.Memory": {"20m", "--memory=20m"},
	"Container.Mount": {"type=bind,source=d,destination=/d,ro", "RequiresMountsFor=/q/d\n"}, "Container.Network": {"host", "--network=host"},
	"Container.NetworkAlias": {"w", "--network-alias=w"}, "Container.NoNewPrivileges": {"false", "--new-privileges"}, "Container.Notify": {"healthy", "--sdnotify=healthy"},
	"Container.PidsLimit": {"7", "--pids=7"}, "Container.PublishPort": {"8080:80", "--publish=8080:80"}, "Container.Pull": {"never", "--pull=never"},
	"Container.ReadOnly": {"true", "--read-only --tmpfs=/run:"}, "Container.ReadOnlyTmpfs": {"true", ""}, "Container.ReloadCmd": {"nginx -s reload", "ExecReload=/usr/bin/longshore exec systemd-%N nginx -s reload\n"},
	"Container.ReloadSignal": {"HUP", "ExecReload=/usr/bin/longshore kill --signal=HUP systemd-%N\n"}, "Container.Retry": {"5", ""}, "Container.RetryDelay": {"5s", ""},
	"Container.RunInit": {"yes", "--init"}, "Container.SeccompProfile": {"/p.json", "--security-opt=seccomp=/p.json"}, "Container.SecurityLabelDisable": {"true", "--security-opt label=disable"},
	"Container.SecurityLabelFileType": {"f_t", "--security-opt=label=filetype:f_t"}, "Container.SecurityLabelLevel": {"s0:c1", "--security-opt=label=level:s0:c1"},
	"Container.SecurityLabelType": {"t_t", "--security-opt=label=type:t_t"},
	"Container.ServiceName":       {"other", "== other.service\n"}, "Container.ShmSize": {"1m", "--shm-size=1m"}, "Container.StopSignal": {"INT", "--stop-signal=INT"},
	"Container.StopTimeout": {"200", "TimeoutStopSec=230\n"}, "Container.Sysctl": {"a.b=1 c.d=2", "--sysctl=a.b=1 --sysctl=c.d=2"},
	"Container.Timezone": {"Europe/Berlin", "--volume=/usr/share/zoneinfo/Europe/Berlin:/etc/localtime:ro"}, "Container.Tmpfs": {"/w:size=1m", "--tmpfs=/w:size=1m"},
	"Container.Ulimit": {"nofile=1:2", "--ulimit=nofile=1:2"}, "Container.Unmask": {"ALL", "--security-opt=systempaths=unconfined"}, "Container.User": {"4", "--user=4"},
	"Container.UserNS": {"auto", "--userns=auto"}, "Container.Volume": {"./d:/d:Z", "--volume=/q/d:/d:Z"}, "Container.WorkingDir": {"/w", "--workdir=/w"},
	"Volume.Copy": {"true", ""}, "Volume.Device": {"tmpfs", "--opt=device=tmpfs"}, "Volume.Driver": {"local", ""}, "Volume.Group": {"5", "--opt=o=gid=5"}, "Volume.Label": {"a=b", "--label=a=b"},
	"Volume.Options": {"size=1m", "--opt=o=size=1m"}, "Volume.ServiceName": {"other", "== other.service\n"}, "Volume.Type": {"tmpfs", "--opt=type=tmpfs"}, "Volume.User": {"4", "--opt=o=uid=4"},
	"Volume.VolumeName": {"data", " data\n"},
	"Network.Driver":    {"bridge", ""}, "Network.Gateway": {"10.0.0.1", "--gateway=10.0.0.1"}, "Network.IPAMDriver": {"host-local", ""}, "Network.IPv6": {"true", "--ipv6"}, "Network.IPRange": {"10.0.0.128/25", "--ip-range=10.0.0.128/25"},
	"Network.Internal": {"true", "--internal"}, "Network.Label": {"a=b", "--label=a=b"}, "Network.NetworkDeleteOnStop": {"true", "ExecStopPost=-/usr/bin/longshore network rm systemd-k\n"},
	"Network.NetworkName": {"net", " net\n"}, "Network.Options": {"mtu=1400", "--opt=mtu=1400"}, "Network.ServiceName": {"other", "== other.service\n"}, "Network.Subnet": {"10.0.0.0/24", "--subnet=10.0.0.0/24"},
	"Quadlet.DefaultDependencies": {"false", ""},
}

// file returns a file with one key.
func file(k Key, value string) File {
	section, kind, more := k.Section, strings.ToLower(k.Section), ""
	if section == "Quadlet" {
		kind = container
	}
	if kind == container && k.Name != "Image" {
		more = "[Container]\nImage=example.com/x\n"
	}
	if k.Name == "Group" && kind == container {
		more += "User=4\n"
	}
	return File{Path: "/q/k." + kind, Data: []byte(more + "[" + section + "]\n" + k.Name + "=" + value + "\n")}
}

// TestEachKeyIsAsItsStateSays translates a file for each key: those that work or differ make a unit with their effect, and
// refused ones make none and give the reason.
func TestEachKeyIsAsItsStateSays(t *testing.T) {
	used := 0
	for _, k := range Keys() {
		example, ok := examples[k.Section+"."+k.Name]
		if k.State == Refused {
			r := generate(file(k, "true"))
			if len(r.Units) > 0 || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Text, k.Name+"= is refused: "+k.Note) || k.Note == "" || ok {
				t.Errorf("%s is refused: %s", k.Name, r.text())
			}
			continue
		}
		used++
		if !ok {
			t.Errorf("%s.%s has no example", k.Section, k.Name)
		}
		if r := generate(file(k, example[0])); len(r.Units) != 1 || !strings.Contains(r.text(), example[1]) || strings.Contains(r.text(), "refused ") {
			t.Errorf("%s=%s has not %q:\n%s", k.Name, example[0], example[1], r.text())
		}
		if k.State == Differs && k.Note == "" {
			t.Errorf("%s differs, but nobody can read how", k.Name)
		}
	}
	if used != len(examples) {
		t.Errorf("%d examples for %d keys", len(examples), used)
	}
}

// TestTheGuideHasEachKey compares the tables of the guide with the keys, both ways.
func TestTheGuideHasEachKey(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/guide/quadlet.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, known []string
	section := ""
	row := regexp.MustCompile("^\\| `([A-Za-z0-9]+)=` \\| (\\w+) \\| (.*) ?\\|$")
	for line := range strings.Lines(string(guide)) {
		line = strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(line, "### ["); ok {
			section = strings.TrimSuffix(s, "]")
		}
		if m := row.FindStringSubmatch(line); m != nil {
			documented = append(documented, section+"."+m[1]+" "+m[2]+" "+strings.TrimSpace(m[3]))
		}
	}
	for _, k := range Keys() {
		known = append(known, k.Section+"."+k.Name+" "+string(k.State)+" "+k.Note)
	}
	for _, k := range known {
		if !slices.Contains(documented, k) {
			t.Errorf("the guide has no row %q", k)
		}
	}
	for _, d := range documented {
		if !slices.Contains(known, d) {
			t.Errorf("the guide has %q, the code has not", d)
		}
	}
	if len(documented) != len(known) {
		t.Errorf("%d rows for %d keys", len(documented), len(known))
	}
}

// TestValuesAsPodmanReadsThem checks values with several readings against those of podman.
func TestValuesAsPodmanReadsThem(t *testing.T) {
	for _, c := range []struct{ text, has, hasNot string }{
		{"ReadOnly=true\nTmpfs=/tmp:size=1m\n", "--tmpfs=/tmp:size=1m", "--tmpfs=/tmp:nosuid"},
		{"ReadOnly=true\nTmpfs=/tmp:size=1m\n", "--tmpfs=/run:nosuid", "refused"},
		{"ReadOnly=true\nVolume=/srv/run:/run/:ro\n", "--tmpfs=/tmp:nosuid", "--tmpfs=/run:"},
		{"ReadOnly=true\nVolume=/run\n", "--tmpfs=/tmp:nosuid", "--tmpfs=/run:"},
		{"ReadOnly=true\nMount=type=tmpfs,dst=/var/tmp\n", "--tmpfs=/tmp:nosuid", "--tmpfs=/var/tmp:"},
		{"HealthCmd=CMD-SHELL curl -f http://x || exit 1\n", `"--health-cmd=curl -f http://x || exit 1"`, "CMD-SHELL"},
		{"HealthCmd=CMD curl -f\n", `"--health-cmd=[\"CMD\",\"curl\",\"-f\"]"`, "refused"},
		{"HealthCmd=CMDS x\n", `"--health-cmd=CMDS x"`, "refused"},
		{"ReloadCmd=first one\nReloadCmd=sh -c 'the second'\n", `exec systemd-%N sh -c "the second"`, "first"},
		{"StopTimeout=1m30s\n", "TimeoutStopSec=120\n", "TimeoutStopSec=31"},
		{"StopTimeout=1500ms\n", "TimeoutStopSec=32\n", "refused"},
		{"AddDevice=/dev/null:/dev/a -/dev/absent /dev/zero\n", "--device=/dev/null:/dev/a --device=/dev/zero ", "absent"},
		{"[Service]\nExecStart=\nExecStopPost=\nEnvironment=\n", "Environment=\n", "ExecStart=\n"},
		{"[Service]\nExecStart=\nExecStopPost=\n", "rm --force --volumes", "ExecStopPost=\n"},
	} {
		got := generate(File{Path: "/q/a.container", Data: []byte("[Container]\nImage=x\n" + c.text)}).text()
		if !strings.Contains(got, c.has) || strings.Contains(got, c.hasNot) {
			t.Errorf("%q has not %q, or has %q:\n%s", c.text, c.has, c.hasNot, got)
		}
	}
	for text, want := range map[string]bool{
		"Type=bind\nDevice=/srv/a b\n": true, "Type=none\nOptions=rw,bind\nDevice=/srv/a b\n": true, "Type=ext4\nDevice=/dev/sdb\n": false, "Type=tmpfs\nDevice=tmpfs\n": false,
	} {
		got := generate(File{Path: "/q/a.volume", Data: []byte("[Volume]\n" + text)}).text()
		if strings.Contains(got, "RequiresMountsFor=\"/srv/a b\"\n") != want || strings.Contains(got, "refused") {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// TestMaskedFilesHaveNoUnit checks that a masked file hides those of its name, drop-ins and refused kinds too.
func TestMaskedFilesHaveNoUnit(t *testing.T) {
	const text = "[Container]\nImage=x\n"
	got := generate(
		File{Path: "/etc/q/a.container", Masked: true}, File{Path: "/etc/q/p.pod", Masked: true}, File{Path: "/etc/q/v.volume", Masked: true}, File{Path: "/etc/q/b.container.d/x.conf", Masked: true},
		File{Path: "/usr/q/a.container", Data: []byte(text)}, File{Path: "/usr/q/p.pod"}, File{Path: "/usr/q/b.container.d/x.conf", Data: []byte("[Container]\nLabel=vendor=yes\n")},
		File{Path: "/usr/q/b.container", Data: []byte(text)}, File{Path: "/usr/q/c.container", Data: []byte(text + "Volume=v.volume:/v\n")},
		File{Path: "/usr/q/d.container", Data: []byte(text + "[Unit]\nAfter=a.container\n")},
	)
	if len(got.Units) != 1 || got.Units[0].Name != "b.service" || strings.Contains(got.text(), "vendor") || strings.Contains(got.text(), "pods") {
		t.Errorf("got %s", got.text())
	}
	for _, want := range []string{"Volume=: v.volume is masked", "After=a.container: a.container is masked"} {
		if !strings.Contains(got.text(), want) {
			t.Errorf("it lacks %q: %s", want, got.text())
		}
	}
}

// TestRefusals checks the reasons of refused files.
func TestRefusals(t *testing.T) {
	const c = "[Container]\nImage=x\n"
	for _, r := range []struct{ name, text, want string }{
		{"a.kube", "[Kube]\nYaml=x\n", "no Kubernetes YAML"},
		{"a.pod", "", "no pods"},
		{"a.image", "", "pull their images"},
		{"a.build", "", "builds no images"},
		{"a.artifact", "", "Mount=type=artifact"},
		{"a.container", "[Container]\n", "has no Image="},
		{"a.container", "[Container]\nImage=b.build\n", "builds no images"},
		{"a.container", c + "Immage=y\n", "a.container:3: [Container] has no key Immage"},
		{"a.container", c + "Network=b.network\n", "there is no file b.network"},
		{"a.container", c + "Volume=b.volume:/b\n", "there is no file b.volume"},
		{"a.container", c + "Network=b.container\n", "there is no file b.container"},
		{"a.container", c + "Network=pasta\n", "networks of its own"},
		{"a.container", c + "Volume=/a:/b:U\n", `option "U"`},
		{"a.container", c + "Mount=type=image,source=b.image,dst=/b\n", "name the image itself"},
		{"a.container", c + "PublishPort=x\n", "PublishPort=x is not"},
		{"a.container", c + "Notify=true\n", "cgroup"},
		{"a.container", c + "Memory=much\n", "--memory"},
		{"a.container", c + "HealthInterval=disable\n", "--health-interval"},
		{"a.container", c + "LogDriver=syslog\n", "none of journald"},
		{"a.container", c + "Group=1\n", "needs User="},
		{"a.container", c + "Exec=sh 'x\n", "has no end"},
		{"a.container", c + "ReadOnly=perhaps\n", "neither true nor false"},
		{"a.container", c + "LogOpt=tag=x\n", "max-size"},
		{"a.container", c + "ReloadCmd=x\nReloadSignal=HUP\n", "exclude each other"},
		{"a.container", c + "Entrypoint=[x\n", "JSON list"},
		{"a.container", c + "EnvironmentHost=true\n", "use Environment="},
		{"a.container", c + "Timezone=../../etc/shadow\n", "not the name of a time zone"},
		{"a.container", c + "EnvironmentFile=-/x\n", "may be missing"},
		{"a.container", c + "ServiceName=../../evil\n", "cannot be the name"},
		{"a.container", c + "ContainerName=-x\n", "cannot be a name"},
		{"longshore.container", c, "of Longshore itself"},
		{"a b.container", c, "cannot be the name"},
		{"a.container", c + "[Service]\nType=forking\n", "notify or oneshot"},
		{"a.container", c + "[Service]\nUser=me\n", "only root"},
		{"a.container", c + "[Service]\nExecStart=/bin/x\n", "is made of"},
		{"a.container", c + "[Install]\nWantedBy=../x\n", "not the name of a unit"},
		{"a.container", c + "[Install]\nAlias=..\n", "not the name of a unit"},
		{"a@.container", c + "[Install]\nDefaultInstance=../x\n", "DefaultInstance="},
		{"a.container", c + "[Unit]\nAfter=b.pod\n", "there is no file b.pod"},
		{"a.container", c + "UserNS=keep-id:uid=5\n", "none of host"},
		{"a.container", c + "Ulimit=host\n", "write the limits"},
		{"a.container", "Image=x\n", "in no section"},
		{"a.volume", "[Volume]\nDriver=image\n", "only local"},
		{"a.volume", "[Volume]\nCopy=false\n", ":nocopy"},
		{"a.network", "[Network]\nDriver=macvlan\n", "only bridge"},
		{"a.network", "[Network]\nIPRange=10.0.0.1-10.0.0.9\n", "CIDR"},
		{"a.network", "[Network]\nOptions=isolate=true\n", "only mtu"},
		{"a.container", c + "CgroupsMode=disabled\n", "each container has a cgroup"},
		{"a.container", c + "Pull=newer\n", "none of always"},
		{"a.container", c + "HealthCmd=CMD-SHELL\n", "HealthCmd=CMD-SHELL has no command"},
		{"a.container", c + "HealthCmd=CMD  \n", "HealthCmd=CMD has no command"},
		{"a.container", c + "StopTimeout=soon\n", "neither seconds nor a duration"},
	} {
		got := generate(File{Path: "/q/" + r.name, Data: []byte(r.text)})
		if len(got.Units)+len(got.Links) > 0 || len(got.Problems) == 0 || !strings.Contains(got.Problems[0].Text+got.Problems[0].Error.Error(), r.want) {
			t.Errorf("%s %q: %s\nwant %s", r.name, r.text, got.text(), r.want)
		}
	}
}

// FuzzGenerate checks that the units of any files have only lines that belong there: a value cannot add a line, a section or a
// command.
func FuzzGenerate(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range archives {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			if file.Name != "want" {
				f.Add(filepath.Base(file.Name), string(file.Data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		r := generate(File{Path: "/q/" + name, Data: []byte(text)}, File{Path: "/q/v.volume", Data: []byte("[Volume]\n")}, File{Path: "/q/n.network", Data: []byte("[Network]\n")})
		for _, u := range r.Units {
			if !unitName.MatchString(u.Name) {
				t.Fatalf("the unit %q", u.Name)
			}
			p, err := unitfile.Parse("u", []byte(u.Text))
			if err != nil {
				t.Fatalf("%v in %q", err, u.Text)
			}
			starts := p.All("Service", "ExecStart")
			if len(starts) != 1 || !strings.HasPrefix(starts[0].Value, "/usr/bin/longshore ") {
				t.Fatalf("commands %+v in %q", starts, u.Text)
			}
			if _, err := unitfile.Split(starts[0].Value); err != nil {
				t.Fatalf("%v in %q", err, starts[0].Value)
			}
		}
		for _, l := range r.Links {
			if strings.Contains("/"+l.Path+"/", "/../") || strings.Count(l.Path, "/") > 1 {
				t.Fatalf("the link %q", l.Path)
			}
		}
	})
}
