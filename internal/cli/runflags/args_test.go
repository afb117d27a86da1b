package runflags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// requestOf parses arguments of run.
func requestOf(t *testing.T, args []string) *longshorev1.CreateRequest {
	t.Helper()
	f := New()
	fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.Define(fl)
	if err := fl.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := f.Fill(fl, fl.Args(), func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	return f.Request
}

// TestArgsRepeatARequest makes arguments of the requests of many flags. Args itself compares both requests; this checks that it
// refuses none, and that the arguments are all there.
func TestArgsRepeatARequest(t *testing.T) {
	for _, line := range []string{
		"busybox",
		"--name x --rm -it --pull always busybox sh -c true",
		"-e A=1 -e B=x=y -w /srv -u 1:2 --group-add 5 --init --stop-signal INT --stop-timeout 90 -l a=b -l c= --annotation d=e busybox -- -- x",
		"-m 64m --memory-swap -1 --memory-reservation 32m --cpus 1.25 --pids 50 --cpuset-cpus 0-1 --cpuset-mems 0 -c 512 --ulimit nofile=1:2 --shm-size 1m --sysctl a.b=c --oom-score-adj -5 x",
		"--privileged --cap-add ALL --cap-drop CHOWN --new-privileges --read-only --security-opt seccomp=unconfined --security-opt apparmor=p --security-opt systempaths=unconfined x",
		"--pid host --ipc host --uts host --userns private --device /dev/fuse:/dev/f:rw --gpus all x",
		"--cpu-quota -1 --cpu-period 50000 --blkio-weight 20 --blkio-weight-device /dev/a:b:30 --device-read-bps /dev/a:1kb --device-write-bps /dev/a:2m --device-read-iops /dev/a:3 --device-write-iops /dev/a:4 x",
		"--device-cgroup-rule=a --memory-swappiness 0 --oom-kill-disable --cgroupns host --domainname example.org --ip6 fd00::9 x",
		"--network n --ip 10.0.0.2 --mac-address 02:00:00:00:00:01 --network-alias a --network-alias b --network name=m,alias=c,ip=10.1.0.2,ip6=fd00::2,mac-address=02:00:00:00:00:02,interface=eth7 x",
		"-p 80 -p 8080:80 -p 127.0.0.1::81 -p [::1]:82:83/udp -p 90-91:90-91/sctp -p 8000-8010:84 -P --expose 99/udp --hostname h --add-host a:1.2.3.4 --dns 1.1.1.1 --dns-search s --dns-option o x",
		"-v /a:/b:ro,rshared -v vol:/c:nocopy -v vol/sub:/d -v /e --mount type=bind,source=/a,target=/f,readonly --tmpfs /g --tmpfs /h:size=1m,mode=755 --volumes-from y:ro x",
		`--health-cmd ["CMD-SHELL","a<b"] --health-interval 1s --health-timeout 2s --health-start-period 3s --health-start-interval 4s --health-retries 5 --health-on-failure kill x`,
		"--no-healthcheck --log-driver none --log-opt max-size=1m --log-opt max-file=2 --runtime crun --platform linux/arm64 --entrypoint= x y",
		"--entrypoint /bin/sh x -c ok",
		"--systemd always x",
		"--mount type=image,source=a:1,target=/a,image-subpath=b/c --mount type=artifact,src=m,dst=/m,title=t,name=n --mount type=artifact,src=m,dst=/n,digest=sha256:1,rw=false x",
		"--systemd=false x",
	} {
		req := requestOf(t, strings.Fields(line))
		args, err := Args(req)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if left := differences(withDefaults(req), requestOf(t, args)); len(left) > 0 {
			t.Errorf("%s: %q has other %v", line, args, left)
		}
	}
}

func TestArgsOfAMountWithCommas(t *testing.T) {
	args, err := Args(&longshorev1.CreateRequest{
		Image: "x", Pull: "missing", StopGrace: durationpb.New(10e9), Mounts: []*longshorev1.Mount{{Source: `/a,"b"`, Target: "/c"}},
	})
	if err != nil || !slices.Contains(args, `--mount=type=bind,"source=/a,""b""",target=/c`) {
		t.Errorf("%q, %v", args, err)
	}
}

// TestArgsOfOtherClients checks that a request without the defaults of the command line needs no flags for them.
func TestArgsOfOtherClients(t *testing.T) {
	args, err := Args(&longshorev1.CreateRequest{Image: "x", OnUnhealthy: "none"})
	if want := []string{"x"}; err != nil || !slices.Equal(args, want) {
		t.Errorf("%q, %v", args, err)
	}
}

// TestArgsRefuseWhatNoFlagCanSay checks that nothing is left out in silence.
func TestArgsRefuseWhatNoFlagCanSay(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(profile, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, req := range map[string]*longshorev1.CreateRequest{
		"seccomp":        requestOf(t, []string{"--security-opt", "seccomp=" + profile, "x"}),
		"tmpfs":          {Image: "x", Pull: "missing", StopGrace: durationpb.New(10e9), Tmpfs: []*longshorev1.Tmpfs{{Target: "/a", Options: []string{"x,y"}}}},
		"health-retries": {Image: "x", Pull: "missing", StopGrace: durationpb.New(10e9), Health: &longshorev1.HealthCheck{Retries: -1}},
	} {
		if args, err := Args(req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", want, args, err)
		}
	}
}
