package swarm

import (
	"fmt"
	"testing"
)

// served is a program that answers at port 80 with its task's id.
const served = `    environment: {TASK: "{{.Task.ID}}"}
    command: [sh, -c, 'mkdir /www; echo $$TASK >/www/index.html; exec httpd -f -p 80 -h /www']
    stop_grace_period: 300ms
`

// shop is a common stack: two networks of which one service is on both, and a published port.
func (x *mixed) shop() string {
	return fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %[1]s
%[2]s    networks: [front, back]
    ports: ["8080:80"]
    deploy: {replicas: 4}
  data:
    image: %[1]s
%[2]s    networks: {back: {aliases: [store]}}
    deploy: {mode: global}
  edge:
    image: %[1]s
%[2]s    networks: [front]
    deploy: {replicas: 2}
networks:
  front: {driver: overlay}
  back: {driver: overlay, attachable: true}
`, x.ref, served)
}

// deploy deploys a stack.
func (x *mixed) deploy(name, file string) {
	x.t.Helper()
	x.write(name+".yml", file)
	x.docker("stack", "deploy", "--resolve-image", "never", "-c", x.home+"/"+name+".yml", name)
}

// TestAStackOverDockerds: what the tests of mixed Swarms ask of all nodes holds between dockerds alone.
func TestAStackOverDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		x := newMixed(t, 2, 0)
		x.deploy("shop", x.shop())
		run := x.settled(map[string]int{"shop_web": 4, "shop_data": 2, "shop_edge": 2})
		x.agree("deployed", run, "shop_front", "shop_back")
		r := between(t, run)
		x.docker("service", "scale", "--detach", "shop_edge=4")
		run = x.settled(map[string]int{"shop_web": 4, "shop_data": 2, "shop_edge": 4})
		x.agree("scaled", run, "shop_front", "shop_back")
		r.whole()
		x.docker("stack", "rm", "shop")
	})
}
