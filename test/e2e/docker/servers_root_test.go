package docker

import (
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
)

// welcome is the page of an nginx that nobody has configured, as far as suites read it.
const welcome = "<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>\n"

// servers makes the images of servers. Their program is testdata/standin.
func servers(push func(repo, tag string, config ocispec.ImageConfig, files ...imagetest.File), program []byte) {
	ports := func(list ...string) map[string]struct{} {
		set := map[string]struct{}{}
		for _, p := range list {
			set[p] = struct{}{}
		}
		return set
	}
	binary := func(name string) imagetest.File { return imagetest.File{Name: name, Body: program, Mode: 0o755} }
	nginx := func(repo, tag string, env ...string) {
		push(repo, tag, ocispec.ImageConfig{Cmd: []string{"nginx", "-g", "daemon off;"}, Env: env, ExposedPorts: ports("80/tcp"), StopSignal: "SIGQUIT"},
			binary("usr/sbin/nginx"), imagetest.File{Name: "usr/share/"}, imagetest.File{Name: "usr/share/nginx/"}, imagetest.File{Name: "usr/share/nginx/html/"},
			imagetest.File{Name: "usr/share/nginx/html/index.html", Body: []byte(welcome)}, imagetest.File{Name: "etc/nginx/"},
			imagetest.File{Name: "etc/nginx/nginx.conf", Body: []byte("worker_processes  auto;\n")}, imagetest.File{Name: "etc/nginx/conf.d/"}, imagetest.File{Name: "var/log/nginx/"})
	}
	for tag := range strings.FieldsSeq("latest alpine mainline 1.17 1.21 stable a b c") {
		nginx("nginx", tag)
	}
	nginx("menedev/delayed-nginx", "1.15.2", "NGINX_DELAY=2s")
	for tag := range strings.FieldsSeq("latest alpine 5.0-alpine 6 7") {
		push("redis", tag, ocispec.ImageConfig{Cmd: []string{"redis-server"}, ExposedPorts: ports("6379/tcp")}, binary("usr/bin/redis-server"))
	}
	for tag := range strings.FieldsSeq("latest 8.0.36") {
		push("mysql", tag, ocispec.ImageConfig{Cmd: []string{"mysqld"}, ExposedPorts: ports("3306/tcp", "33060/tcp")}, binary("usr/bin/mysqld"))
	}
	push("influxdb", "1.8.10-alpine", ocispec.ImageConfig{Cmd: []string{"influxd"}, ExposedPorts: ports("8086/tcp")}, binary("usr/bin/influxd"))
}
