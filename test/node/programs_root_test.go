package node

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// program is a Debian program, and a script that uses it and fails if it does not work, in a container of containers.
type program struct {
	name, script string
	in           string // "plain" if empty
}

// containers have the flags of the containers of programs. Only a privileged one has the node's ids with both settings.
func containers() map[string][]string {
	return map[string][]string{
		"plain":      nil,
		"admin":      {"--cap-add", "NET_ADMIN"},
		"privileged": {"--privileged"},
		"nested":     {"--userns", "private", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined"},
	}
}

// programs are unmodified Debian packages. docs/guide/userns.md has a table of their results.
func programs() []program {
	const wait = `for i in $(seq 100); do if %; then exit 0; fi; sleep 0.1; done; exit 1`
	until := func(start, test string) string { return start + "\n" + strings.ReplaceAll(wait, "%", test) }
	const image = "mkdir -p /data/i/bin; cp /bin/busybox /data/i/bin/; ln -sf busybox /data/i/bin/echo; "
	podman := func(flag string) string {
		return image + "p='podman --root /data/podman --cgroup-manager cgroupfs --events-backend file'; tar -C /data/i -c . | $p import -q - x >/dev/null; test \"$($p run --rm " + flag + " x /bin/echo hi)\" = hi"
	}
	const docker = image + "dockerd --data-root /data/docker >/tmp/dockerd.log 2>&1 & for i in $(seq 300); do docker version >/dev/null 2>&1 && break; sleep 0.1; done; tar -C /data/i -c . | docker import - x >/dev/null; test \"$(docker run --rm x /bin/echo hi)\" = hi"
	return []program{
		{name: "PostgreSQL", script: until("mkdir -p /var/lib/postgresql/d; chown -R postgres /var/lib/postgresql; b=/usr/lib/postgresql/15/bin; su postgres -c \"$b/initdb -D /var/lib/postgresql/d -A trust --locale=C >/dev/null\"; su postgres -c \"$b/postgres -D /var/lib/postgresql/d -c jit=off -c unix_socket_directories=/tmp\" >/dev/null 2>&1 &", "/usr/lib/postgresql/15/bin/psql -h /tmp -U postgres -c 'create table if not exists t(x int)' >/dev/null 2>&1")},
		{name: "Redis", script: until("redis-server --save '' --port 7001 >/dev/null & ", "test \"$(redis-cli -p 7001 set a b)\" = OK")},
		{name: "nginx", script: until("printf 'user www-data;events{}http{server{listen 80;root /etc;}}' >/tmp/nginx.conf; nginx -c /tmp/nginx.conf", "curl -sf localhost/hostname >/dev/null")},
		{name: "HAProxy", script: until("printf 'global\\n user nobody\\n group nogroup\\ndefaults\\n mode http\\n timeout client 9s\\n timeout server 9s\\n timeout connect 9s\\nfrontend f\\n bind :81\\n http-request return status 200 string ok content-type text/plain\\n' >/tmp/haproxy.cfg; haproxy -D -f /tmp/haproxy.cfg", "test \"$(curl -s localhost:81)\" = ok")},
		{name: "memcached", script: until("memcached -d -u nobody -p 7002", "printf 'version\\r\\nquit\\r\\n' | nc -N -q1 localhost 7002 | grep -q VERSION")},
		{name: "dnsmasq", script: until("dnsmasq --port=5353 --user=nobody --address=/x.test/1.2.3.4 --no-resolv --pid-file=/tmp/dnsmasq.pid", "test -s /tmp/dnsmasq.pid")},
		{name: "sshd", script: until("ssh-keygen -q -t ed25519 -N '' -f /root/key; ssh-keygen -A >/dev/null; mkdir -p /home/user/.ssh; cp /root/key.pub /home/user/.ssh/authorized_keys; chown -R user:user /home/user/.ssh; chmod 700 /home/user/.ssh; /usr/sbin/sshd -f /dev/null -p 2222 -o UsePAM=no", "test \"$(ssh -i /root/key -o StrictHostKeyChecking=no -o LogLevel=ERROR -p 2222 user@localhost id -un)\" = user")},
		{name: "sudo", script: "echo 'user ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/user; chmod 440 /etc/sudoers.d/user; printf 'auth sufficient pam_permit.so\\naccount sufficient pam_permit.so\\nsession sufficient pam_permit.so\\n' >/etc/pam.d/sudo; test \"$(su user -s /bin/sh -c 'sudo -n id -u')\" = 0"},
		{name: "su", script: "test \"$(su user -s /bin/sh -c 'id -u')\" = 1000"},
		{name: "a setuid program", script: "cp /usr/bin/id /usr/local/bin/sid; chmod 4755 /usr/local/bin/sid; setpriv --reuid 1000 --clear-groups /usr/local/bin/sid | grep -q 'euid=0'"},
		{name: "file capabilities (setcap)", script: "cp /usr/bin/python3.11 /usr/local/bin/py; setcap cap_net_bind_service=ep /usr/local/bin/py; getcap /usr/local/bin/py | grep -q net_bind"},
		{name: "passwd, useradd", script: "useradd -m new; echo new:secret | chpasswd; grep -q '^new:' /etc/shadow; test \"$(stat -c %U /home/new)\" = new"},
		{name: "adduser", script: "adduser --disabled-password --gecos '' more >/dev/null; id more >/dev/null"},
		{name: "chown, chmod, chgrp of a tree", script: "mkdir -p /tree/a/b; touch /tree/a/b/f; chown -R 1234:4321 /tree; test \"$(stat -c %u:%g /tree/a/b/f)\" = 1234:4321"},
		{name: "tar with owners", script: "mkdir -p /t; touch /t/f; chown 33:44 /t/f; tar -C /t -cf /t.tar .; mkdir -p /t2; tar -C /t2 --same-owner -xpf /t.tar; test \"$(stat -c %u:%g /t2/f)\" = 33:44"},
		{name: "cpio", script: "mkdir -p /c; touch /c/f; chown 5:6 /c/f; cd /c; find . | cpio -o -H newc >/c.cpio 2>/dev/null; mkdir -p /c2; cd /c2; cpio -i </c.cpio 2>/dev/null; test \"$(stat -c %u:%g f)\" = 5:6"},
		{name: "rsync -a", script: "mkdir -p /r; touch /r/f; chown 7:8 /r/f; rsync -aHAX /r/ /r2/; test \"$(stat -c %u:%g /r2/f)\" = 7:8"},
		{name: "cp -a", script: "touch /f1; chown 9:9 /f1; cp -a /f1 /f2; test \"$(stat -c %u /f2)\" = 9"},
		{name: "ACLs (setfacl)", script: "touch /acl; setfacl -m u:33:r /acl; getfacl -n /acl 2>/dev/null | grep -q user:33:r"},
		{name: "extended attributes", script: "touch /xa; setfattr -n user.a -v b /xa; test \"$(getfattr --only-values -n user.a /xa 2>/dev/null)\" = b"},
		{name: "git", script: "git config --global user.email a@b; git config --global user.name a; mkdir -p /g; cd /g; git init -q; echo x >f; git add f; git commit -qm x; git clone -q /g /g2; test -f /g2/f"},
		{name: "gcc, make", script: "mkdir -p /m; cd /m; printf 'int main(){return 0;}' >a.c; printf 'a: a.c\\n\\tgcc -o a a.c\\n' >Makefile; make -s; ./a"},
		{name: "dpkg -i", script: "dpkg --force-all -i /zip.deb >/tmp/dpkg.log 2>&1; dpkg -s zip | grep -q '^Status: install ok'"},
		{name: "apt", script: "apt-get -o APT::Sandbox::User=root check >/dev/null 2>&1 || apt-cache policy >/dev/null"},
		{name: "perl", script: "perl -e 'chown 3,4,\"/f1\" or die; exit((stat \"/f1\")[4]!=3)'"},
		{name: "python3", script: "python3 -c 'import os,socket,multiprocessing as m; p=m.Pool(2); assert p.map(abs,[-1,2])==[1,2]; os.setgroups([5]); os.setuid(1000)'"},
		{name: "SQLite", script: "test \"$(sqlite3 /db 'create table t(x); insert into t values(7); select x from t')\" = 7"},
		{name: "openssl", script: "openssl req -x509 -newkey rsa:2048 -nodes -keyout /k.pem -out /c.pem -subj /CN=x 2>/dev/null; openssl verify -CAfile /c.pem /c.pem >/dev/null"},
		{name: "cron", script: until("echo '* * * * * root touch /cronned' >/etc/cron.d/x; cron", "pidof cron >/dev/null")},
		{name: "at", script: "chmod 1770 /var/spool/cron/atjobs /var/spool/cron/atspool 2>/dev/null; atd; echo true | at now + 1 hour 2>&1 | grep -q job"},
		{name: "rsyslog", script: until("printf 'module(load=\"imuxsock\")\\n*.* /var/log/all\\n' >/tmp/r.conf; rsyslogd -f /tmp/r.conf -i /tmp/r.pid; sleep 0.5; logger hello", "grep -q hello /var/log/all")},
		{name: "logrotate", script: "echo x >/var/log/x; printf '/var/log/x {\\n create 640 root adm\\n rotate 1\\n}\\n' >/tmp/lr; chmod 644 /tmp/lr; logrotate -f -s /tmp/lr.state /tmp/lr; test -f /var/log/x.1"},
		{name: "ping", script: "ping -c1 -W2 127.0.0.1 >/dev/null"},
		{name: "ping as a user", script: "setpriv --reuid 1000 --regid 1000 --clear-groups ping -c1 -W2 127.0.0.1 >/dev/null"},
		{name: "a port below 1024", script: "timeout 2 nc -l 127.0.0.1 99 >/dev/null & sleep 0.3; echo x | nc -q0 127.0.0.1 99"},
		{name: "tcpdump", script: "(sleep 0.7; ping -c2 127.0.0.1 >/dev/null) & timeout 5 tcpdump -Z root -c1 -i lo icmp >/dev/null 2>&1"},
		{name: "ip addr, link, route", in: "admin", script: "ip link add d0 type bridge; ip addr add 10.99.0.1/24 dev d0; ip link set d0 up; ip route | grep -q 10.99.0.0"},
		{name: "iptables", in: "admin", script: "iptables -A INPUT -p tcp --dport 9 -j DROP; iptables -S | grep -q 'dport 9'"},
		{name: "nft", in: "admin", script: "nft add table inet t; nft list tables | grep -q 'inet t'"},
		{name: "strace", script: "strace -o /tmp/st true; grep -q execve /tmp/st"},
		{name: "strace -p", script: "sleep 5 & p=$!; timeout 2 strace -p $p -o /tmp/st2 & sleep 0.7; kill $p; test -f /tmp/st2"},
		{name: "gdb", script: "gdb -batch -ex run -ex 'info proc' --args /usr/bin/true 2>&1 | grep -q 'exited normally'"},
		{name: "lsof", script: "sleep 3 </etc/passwd & lsof -p $! 2>/dev/null | grep -q /etc/passwd"},
		{name: "ps, pgrep", script: "sleep 77 & ps aux >/tmp/ps; grep -q 'sleep 77' /tmp/ps; pgrep -f 'sleep 77' >/dev/null; kill $!"},
		{name: "mkfifo, flock", script: "mkfifo /ff; (echo x >/ff &); test \"$(cat /ff)\" = x; flock /lock true"},
		{name: "mknod of a device", script: "mknod /nod c 1 3; echo x >/nod"},
		{name: "mkfs.ext4 of a file", script: "truncate -s 8M /img; mkfs.ext4 -q -F /img; e2fsck -fn /img >/dev/null 2>&1"},
		{name: "fakeroot", script: "su user -s /bin/sh -c 'cd /tmp; fakeroot-sysv sh -c \"touch fr; chown 0:0 fr; stat -c %u fr\"' | grep -q '^0$'"},
		{name: "socat", script: "socat UNIX-LISTEN:/s1,fork EXEC:cat & sleep 0.3; test \"$(echo hi | timeout 2 socat - UNIX:/s1)\" = hi"},
		{name: "nice of oneself, renice", script: "nice -n 5 true; sleep 3 & renice -n 5 $! >/dev/null"},
		{name: "renice to a higher priority", script: "sleep 3 & renice -n -5 $! >/dev/null"},
		{name: "ulimit, prlimit", script: "prlimit --nofile=100 true; ulimit -c 0"},
		{name: "chroot", script: "mkdir -p /ch/bin; cp /bin/busybox /ch/bin/; chroot /ch /bin/busybox true"},
		{name: "mount of a tmpfs", script: "mkdir -p /mt; mount -t tmpfs x /mt"},
		{name: "unshare -U", script: "unshare -Ur id -u"},
		{name: "bubblewrap", script: "bwrap --ro-bind / / --dev /dev true"},
		{name: "hostname NAME", script: "hostname other"},
		{name: "date -s", script: "date -s \"$(date)\" >/dev/null"},
		{name: "dmesg", script: "dmesg >/dev/null"},
		{name: "sysctl -w of the network", script: "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{name: "busybox httpd", script: until("busybox httpd -p 8099 -h /etc", "curl -sf localhost:8099/hostname >/dev/null")},
		{name: "screen, tmux", script: "tmux -S /tmp/tm new-session -d 'sleep 3'; tmux -S /tmp/tm ls | grep -q windows"},
		{name: "zip, gzip, xz, bzip2", script: "cd /etc; zip -q /z.zip passwd; unzip -tq /z.zip >/dev/null; gzip -c passwd | gunzip | cmp - passwd; xz -c passwd | xz -d | cmp - passwd; bzip2 -c passwd | bunzip2 | cmp - passwd"},
		{name: "curl, jq, bc, file, vim", script: "echo '{\"a\":1}' | jq -e .a >/dev/null; test \"$(echo 2+3 | bc)\" = 5; file /etc/passwd | grep -q ASCII; curl -sf file:///etc/passwd >/dev/null"},
		{name: "npm", script: "mkdir -p /n/lib/bin /n/app; cd /n/lib; printf '{\"name\":\"lib\",\"version\":\"1.0.0\",\"bin\":{\"hello\":\"bin/h.js\"},\"scripts\":{\"postinstall\":\"touch installed\"}}' >package.json; printf '#!/usr/bin/env node\nconsole.log(\"hello\")\n' >bin/h.js; chown -R 1000:1000 /n; npm pack --silent >/dev/null; cd /n/app; echo '{\"name\":\"app\",\"version\":\"1.0.0\"}' >package.json; npm install --silent --offline --no-audit ../lib/lib-1.0.0.tgz; test \"$(npx --offline hello)\" = hello; test -f node_modules/lib/installed; npm install --silent --offline --no-audit -g ../lib/lib-1.0.0.tgz; test \"$(hello)\" = hello"},
		{name: "pip", script: "mkdir -p /p/src/lib; cd /p/src; printf 'from setuptools import setup\nsetup(name=\"lib\", version=\"1.0\", packages=[\"lib\"], entry_points={\"console_scripts\": [\"lib-hello=lib:main\"]})\n' >setup.py; printf 'def main():\n    print(\"hello\")\n' >lib/__init__.py; pip wheel -q --no-index --no-build-isolation --no-deps -w /p/wheels .; o='-q --no-index --find-links /p/wheels --break-system-packages --no-warn-script-location'; pip install $o --root-user-action ignore lib; test \"$(lib-hello)\" = hello; su user -s /bin/bash -c \"cd; pip install --user --ignore-installed $o lib; .local/bin/lib-hello\" | grep -q hello"},
		{name: "podman", script: podman("")},
		{name: "podman, privileged", in: "privileged", script: podman("")},
		{name: "podman with SYS_ADMIN in a user namespace, without cgroups", in: "nested", script: podman("--cgroups=disabled")},
		{name: "docker", script: docker},
		{name: "docker, privileged", in: "privileged", script: docker},
		{name: "docker with SYS_ADMIN in a user namespace", in: "nested", script: docker},
		{name: "files of a volume and of the host", script: "touch /data/v; chown 33 /data/v; test \"$(stat -c %u /data/v /theirs/f | tr '\\n' ' ')\" = '33 44 '; echo new >>/theirs/f"},
	}
}

// TestProgramsInUserNamespaces runs unmodified programs of Debian with engine.userns = "auto" and "off". All but those in differs have
// the same result in both. LONGSHORE_PROGRAMS_DIR names the directory that hack/programs.sh has filled.
func TestProgramsInUserNamespaces(t *testing.T) {
	tree := os.Getenv("LONGSHORE_PROGRAMS_DIR")
	if tree == "" {
		t.Skip("LONGSHORE_PROGRAMS_DIR names no programs (make programs)")
	}
	roottest.Run(t, func(t *testing.T) {
		var without, with map[string]string
		t.Run("off", func(t *testing.T) { without = runPrograms(t, tree, "off") })
		t.Run("auto", func(t *testing.T) { with = runPrograms(t, tree, "auto") })
		differs := []string{"mknod of a device"}
		works := 0
		for _, p := range programs() {
			a, b := without[p.name], with[p.name]
			t.Logf("| %s | %s | %s |", p.name, a, b)
			if b == "works" {
				works++
			}
			if (a != b) != slices.Contains(differs, p.name) {
				t.Errorf("%s: %s without, %s with", p.name, a, b)
			}
		}
		t.Logf("%d of %d work in a user namespace", works, len(programs()))
	})
}

func runPrograms(t *testing.T, tree, userns string) map[string]string {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Config: "userns = \"" + userns + "\"\n"})
	const image = "debian/programs"
	if _, err := n.CLI("import", filepath.Join(tree, "root.tar"), image); err != nil {
		t.Fatal(err)
	}
	theirs := t.TempDir()
	if err := os.WriteFile(filepath.Join(theirs, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(theirs, "f"), 44, 44); err != nil {
		t.Fatal(err)
	}
	for name, flags := range containers() {
		if _, err := n.CLI(append(append([]string{"run", "-d", "--init", "--new-privileges", "--name", name, "-v", theirs + ":/theirs", "-v", "data" + name + ":/data"}, flags...), image, "/bin/sleep", "100000")...); err != nil {
			t.Fatal(err)
		}
	}
	results := map[string]string{}
	for _, p := range programs() {
		in := cmp.Or(p.in, "plain")
		results[p.name] = "works"
		if out, err := n.CLI("exec", in, "/usr/bin/timeout", "90", "/bin/bash", "-e", "-c", p.script); err != nil {
			results[p.name] = "fails"
			t.Logf("%s: %s: %s%v", userns, p.name, out, err)
		}
	}
	for name := range containers() {
		if _, err := n.CLI("rm", "-f", name); err != nil {
			t.Error(err)
		}
	}
	return results
}
