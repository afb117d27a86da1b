job "greeter" {
  group "greeter" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }

    task "greeter" {
      driver = "longshore"

      config {
        image = "registry.example/greeter"

        grants {
          document = <<EOT
greeting: hello
listen: !listen {tcp: 8080}
log: !container_log
stop: !shutdown
EOT
        }
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
