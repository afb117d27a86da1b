// Command traefik runs Traefik's docker provider at the endpoint that its argument names, and writes a line of JSON for each
// configuration. It is a module of its own, because Traefik links older libraries than the tree.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/provider/docker"
	"github.com/traefik/traefik/v3/pkg/safe"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: traefik ENDPOINT")
	}
	p := &docker.Provider{}
	p.SetDefaults()
	p.Endpoint = os.Args[1]
	if err := p.Init(); err != nil {
		log.Fatal(err)
	}
	configurations := make(chan dynamic.Message)
	if err := p.Provide(configurations, safe.NewPool(context.Background())); err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	for m := range configurations {
		if err := out.Encode(m.Configuration.HTTP); err != nil {
			log.Fatal(err)
		}
	}
}
