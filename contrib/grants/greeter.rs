// rustc -O --target x86_64-unknown-linux-musl greeter.rs, or with GNU's: rustc -O -C target-feature=+crt-static greeter.rs
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::io::FromRawFd;
use std::{process, thread};

/// Finds {"NAME":{"fd":N}}: the argument is canonical JSON, without spaces. A larger program has serde_json.
fn fd(argument: &str, name: &str) -> Option<i32> {
    let key = format!("\"{}\":{{\"fd\":", name);
    let at = argument.find(&key)? + key.len();
    argument[at..].split('}').next()?.parse().ok()
}

fn main() -> std::io::Result<()> {
    let mut argument = String::new();
    unsafe { File::from_raw_fd(3) }.read_to_string(&mut argument)?;
    let greeting = argument.split("\"greeting\":\"").nth(1).and_then(|s| s.split('"').next()).unwrap_or("").to_string();
    let listener = match fd(&argument, "listen") {
        Some(n) => unsafe { TcpListener::from_raw_fd(n) },
        None => {
            // It may not: this is to show how that looks.
            println!("no listener was granted, and so: {}", TcpListener::bind("0.0.0.0:8080").unwrap_err());
            process::exit(1);
        }
    };
    listener.set_nonblocking(false)?;
    if let Some(n) = fd(&argument, "stop") {
        let mut stop = unsafe { File::from_raw_fd(n) };
        thread::spawn(move || {
            let _ = stop.read(&mut [0]); // its end is the request
            process::exit(0)
        });
    }
    if let Some(n) = fd(&argument, "log") {
        writeln!(unsafe { File::from_raw_fd(n) }, "serving")?;
    }
    for connection in listener.incoming() {
        let mut connection = connection?;
        if connection.read(&mut [0; 4096])? > 0 {
            write!(connection, "HTTP/1.0 200 OK\r\n\r\n{}\n", greeting)?;
        }
    }
    Ok(())
}
