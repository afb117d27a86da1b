package docker_test

import (
	"fmt"
	"strings"
)

// upgrade are the header lines of clients that want a raw connection.
var upgrade = []string{"Connection: Upgrade", "Upgrade: tcp"}

// attached attaches to a new container, then starts it.
func attached(create, attach string, headers []string, rest func(c *conversation)) func(*side) string {
	return func(s *side) string {
		s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: create}))
		c := talk(s)
		c.request("POST /containers/{raw}/attach?"+attach, headers, "")
		c.answer()
		c.note("start: %d", s.do(step{do: "POST /containers/{raw}/start"}).status)
		rest(c)
		r := s.do(step{do: "POST /containers/{raw}/wait"})
		c.note("wait: %s", r.body)
		return c.end()
	}
}

// executed makes an exec in the scene's container and starts it.
func executed(create, start string, headers []string, rest func(c *conversation)) func(*side) string {
	return func(s *side) string {
		s.kept(step{keep: "exec=Id"}, s.do(step{do: "POST /containers/box/exec", body: create}))
		c := talk(s)
		c.request("POST /exec/{exec}/start", headers, start)
		c.answer()
		rest(c)
		for _, name := range []string{"Running", "ExitCode"} {
			c.note("%s", s.play(step{do: "GET /exec/{exec}/json", until: "Running=false", exact: name})["value of $."+name])
		}
		return c.end()
	}
}

const catWithInput = `{"Image":"box","Cmd":["cat"],"OpenStdin":true,"StdinOnce":true,"AttachStdin":true,"AttachStdout":true,"AttachStderr":true}`

// rawScenes are conversations on raw connections.
var rawScenes = []scene{
	{"attach", []step{
		{do: "attach with Upgrade, and input that ends", play: attached(catWithInput, "stream=1&stdin=1&stdout=1&stderr=1", upgrade, func(c *conversation) {
			c.send("hello\n")
			c.endInput()
			c.framed()
		})},
		{do: "attach without Upgrade, and input that ends", play: attached(catWithInput, "stream=1&stdin=1&stdout=1&stderr=1", nil, func(c *conversation) {
			c.send("hello\n")
			c.endInput()
			c.framed()
		})},
		{do: "attach without Content-Length and with chunked encoding", play: attached(catWithInput, "stream=1&stdin=1&stdout=1&stderr=1", append([]string{"User-Agent: x"}, upgrade...), func(c *conversation) {
			c.send(strings.Repeat("x", 5000) + "\n")
			c.endInput()
			c.framed()
		})},
		{do: "attach of output only", play: attached(`{"Image":"box","Cmd":["sh","-c","echo out; sleep 0.2; echo err >&2"]}`, "stream=1&stdout=1&stderr=1", upgrade, (*conversation).framed)},
		{do: "attach of errors only", play: attached(`{"Image":"box","Cmd":["sh","-c","echo out; echo err >&2"]}`, "stream=1&stderr=1", upgrade, (*conversation).framed)},
		{do: "attach to a terminal", play: attached(`{"Image":"box","Cmd":["sh","-c","tty; read x; echo got $x"],"Tty":true,"OpenStdin":true}`, "stream=1&stdin=1&stdout=1&stderr=1", upgrade, func(c *conversation) {
			c.next(len("/dev/pts/0\r\n"))
			c.send("abc\n")
			c.raw()
		})},
		{do: "attach in 1.41", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: `{"Image":"box","Cmd":["echo","x"]}`}))
			c := talk(s)
			c.request("POST /v1.41/containers/{raw}/attach?stream=1&stdout=1", upgrade, "")
			c.answer()
			c.note("start: %d", s.do(step{do: "POST /containers/{raw}/start"}).status)
			c.framed()
			return c.end()
		}},
		{do: "detach keys", play: attached(`{"Image":"box","Cmd":["sh","-c","tty; sleep 1"],"Tty":true,"OpenStdin":true}`, "stream=1&stdin=1&stdout=1&detachKeys=ctrl-a", upgrade, func(c *conversation) {
			c.next(len("/dev/pts/0\r\n"))
			c.send("\x01")
			c.raw()
		})},
		{do: "attach with nonsense as detach keys", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: catWithInput}))
			c := talk(s)
			c.request("POST /containers/{raw}/attach?stream=1&stdin=1&detachKeys=nonsense", append([]string{"Connection: close"}, upgrade[1:]...), "")
			c.answer()
			c.raw()
			return c.end()
		}},
		{do: "attach to a container that is not there", play: func(s *side) string {
			c := talk(s)
			c.request("POST /containers/none/attach?stream=1&stdout=1", []string{"Connection: close"}, "")
			c.answer()
			c.raw()
			return c.end()
		}},
		{do: "attach to an exited container with its log", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: `{"Image":"box","Cmd":["sh","-c","echo out; sleep 0.2; echo err >&2"]}`}))
			s.do(step{do: "POST /containers/{raw}/start"})
			s.do(step{do: "POST /containers/{raw}/wait"})
			c := talk(s)
			c.request("POST /containers/{raw}/attach?logs=1&stdout=1&stderr=1", upgrade, "")
			c.answer()
			c.framed()
			return c.end()
		}},
		{do: "attach to an exited container joins its next run", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: catWithInput}))
			var text string
			for range 2 {
				c := talk(s)
				c.request("POST /containers/{raw}/attach?stream=1&stdin=1&stdout=1", upgrade, "")
				c.answer()
				c.note("start: %d", s.do(step{do: "POST /containers/{raw}/start"}).status)
				c.send("round\n")
				c.endInput()
				c.framed()
				s.do(step{do: "POST /containers/{raw}/wait"})
				text += c.end()
			}
			return text
		}},
		{do: "attach to a paused container", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: `{"Image":"box","Cmd":["sleep","100"]}`}))
			s.do(step{do: "POST /containers/{raw}/start"})
			s.do(step{do: "POST /containers/{raw}/pause"})
			c := talk(s)
			c.request("POST /containers/{raw}/attach?stream=1&stdout=1", []string{"Connection: close"}, "")
			c.answer()
			c.raw()
			return c.end()
		}},
		{do: "two clients of one container", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: `{"Image":"box","Cmd":["echo","both"]}`}))
			a, b := talk(s), talk(s)
			for _, c := range []*conversation{a, b} {
				c.request("POST /containers/{raw}/attach?stream=1&stdout=1&stderr=1", upgrade, "")
				c.answer()
			}
			a.note("start: %d", s.do(step{do: "POST /containers/{raw}/start"}).status)
			a.framed()
			b.framed()
			return a.end() + b.end()
		}},
		{do: "logs that follow until the end", play: func(s *side) string {
			s.kept(step{keep: "raw=Id"}, s.do(step{do: "POST /containers/create", body: `{"Image":"box","Cmd":["sh","-c","echo one; sleep 0.5; echo two"]}`}))
			s.do(step{do: "POST /containers/{raw}/start"})
			f := s.factsOf(step{as: "frames"}, s.do(step{do: "GET /containers/{raw}/logs?stdout=1&follow=1"}))
			return fmt.Sprint(f["header Content-Type"], f["body"])
		}},
	}},
	{"exec start", []step{
		{do: "POST /containers/create?name=box", body: `{"Image":"box","Cmd":["sleep","100"]}`},
		{do: "POST /containers/box/start"},
		{do: "exec start with Upgrade", play: executed(`{"AttachStdout":true,"AttachStderr":true,"Cmd":["sh","-c","echo out; sleep 0.2; echo err >&2; exit 3"]}`, `{"Detach":false,"Tty":false}`, upgrade, (*conversation).framed)},
		{do: "exec start without Upgrade", play: executed(`{"AttachStdout":true,"Cmd":["echo","x"]}`, `{}`, nil, (*conversation).framed)},
		{do: "exec with input that ends", play: executed(`{"AttachStdin":true,"AttachStdout":true,"Cmd":["cat"]}`, `{}`, upgrade, func(c *conversation) {
			c.send("hello\n")
			c.endInput()
			c.framed()
		})},
		{do: "exec with input in the same packet as its body", play: func(s *side) string {
			s.kept(step{keep: "exec=Id"}, s.do(step{do: "POST /containers/box/exec", body: `{"AttachStdin":true,"AttachStdout":true,"Cmd":["cat"]}`}))
			c := talk(s)
			c.send(s.fill("POST /exec/{exec}/start HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}early\n"))
			c.answer()
			c.send("late\n")
			c.endInput()
			c.framed()
			return c.end()
		}},
		{do: "exec with a chunked body", play: func(s *side) string {
			s.kept(step{keep: "exec=Id"}, s.do(step{do: "POST /containers/box/exec", body: `{"AttachStdin":true,"AttachStdout":true,"Cmd":["cat"]}`}))
			c := talk(s)
			c.send(s.fill("POST /exec/{exec}/start HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
			c.answer()
			c.send("chunked\n")
			c.endInput()
			c.framed()
			return c.end()
		}},
		{do: "exec on a terminal", play: executed(`{"AttachStdin":true,"AttachStdout":true,"Tty":true,"Cmd":["sh","-c","stty size; exit 4"]}`, `{"Tty":true,"ConsoleSize":[30,90]}`, upgrade, (*conversation).raw)},
		{do: "exec made for a terminal and started without one", play: executed(`{"AttachStdout":true,"Tty":true,"Cmd":["echo","x"]}`, `{"Tty":false}`, upgrade, (*conversation).raw)},
		{do: "exec of a command that is not there", play: executed(`{"AttachStdout":true,"Cmd":["nonsense"]}`, `{}`, upgrade, (*conversation).framed)},
		{do: "exec that nobody attached to", play: executed(`{"Cmd":["echo","x"]}`, `{}`, upgrade, (*conversation).framed)},
		{do: "exec as Jenkins writes it", play: func(s *side) string {
			s.kept(step{keep: "exec=Id"}, s.do(step{do: "POST /containers/box/exec", body: `{"AttachStdin":true,"AttachStdout":true,"Cmd":["cat"]}`}))
			c := talk(s)
			body := `{"Detach":false,"Tty":false}`
			c.send(s.fill(fmt.Sprintf("POST /v1.51/exec/{exec}/start HTTP/1.1\nHost: docker\nContent-Type: application/json\nConnection: Upgrade\nUpgrade: tcp\nContent-Length: %d\n\n%s", len(body), body)))
			c.answer()
			c.send("channel\n")
			c.endInput()
			c.framed()
			return c.end()
		}},
		{do: "the second start of an exec with Upgrade", play: func(s *side) string {
			s.kept(step{keep: "exec=Id"}, s.do(step{do: "POST /containers/box/exec", body: `{"AttachStdout":true,"Cmd":["sleep","1"]}`}))
			a, b := talk(s), talk(s)
			a.request("POST /exec/{exec}/start", upgrade, `{}`)
			a.answer()
			b.request("POST /exec/{exec}/start", upgrade, `{}`)
			b.answer()
			b.framed()
			a.framed()
			return a.end() + b.end()
		}},
		{do: "a client that leaves does not end the exec", play: func(s *side) string {
			s.kept(step{keep: "exec=Id"}, s.do(step{do: "POST /containers/box/exec", body: `{"AttachStdout":true,"Cmd":["sh","-c","echo a; sleep 1; echo done >/left"]}`}))
			c := talk(s)
			c.request("POST /exec/{exec}/start", upgrade, `{}`)
			c.answer()
			c.next(8 + len("a\n"))
			text := c.end()
			f := s.play(step{do: "GET /exec/{exec}/json", until: "Running=false", exact: "ExitCode"})
			r := s.do(step{do: "HEAD /containers/box/archive?path=/left"})
			return text + fmt.Sprint(f["value of $.ExitCode"], r.status)
		}},
	}},
}
