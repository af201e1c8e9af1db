//! Tests of several devices on one task, and of devices that do not exist.

use pushpull::{GraphBuilder, Session, SessionOptions, Tensor};

use crate::harness::Servers;

#[test]
fn products_on_two_devices_are_added_on_a_third() {
    let servers = Servers::start(&[("local", 1)], &["--devices=4"]);
    let mut g = GraphBuilder::new("devices");
    let a = g.value(Tensor::new([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap());
    let b = g.value(Tensor::new([3, 2], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap());
    let products = ["/cpu:2", "/device:CPU:3"].map(|device| g.device(device, |g| g.matmul(a, b)));
    let sum = g.device("/cpu:0", |g| g.add_n(&products));
    let graph = g.finish_session().unwrap();
    let session = servers.session("local/0");
    let placement = session.placement(&graph).unwrap();
    let of = [products[0], products[1], sum].map(|node| placement[node.index()].as_str());
    assert_eq!(of, [2, 3, 0].map(|cpu| format!("/job:local/task:0/device:CPU:{cpu}")));
    let values = session.run(&graph, &[], &[sum]).unwrap();
    assert_eq!(values[0].f32s().unwrap(), [44.0, 56.0, 98.0, 128.0]);
    assert_eq!(session.describe().unwrap().tasks[0].cpus, 4);
}

#[test]
fn a_missing_device_is_replaced_only_if_that_is_allowed() {
    let servers = Servers::start(&[("local", 1)], &[]);
    let mut g = GraphBuilder::new("card");
    let one = g.device("/device:GPU:0", |g| g.value(1.0f32));
    let graph = g.finish_session().unwrap();
    let error = servers.session("local/0").run(&graph, &[], &[one]).unwrap_err().to_string();
    assert!(error.contains("requests /device:GPU:0, expected /job:local/task:0/device:CPU:0"), "{error}");

    let options = SessionOptions { soft_placement: true, ..SessionOptions::default() };
    let soft = Session::connect_with(&servers.target("local/0"), options).unwrap();
    assert_eq!(soft.run(&graph, &[], &[one]).unwrap()[0].f32s().unwrap(), [1.0]);
    assert_eq!(soft.placement(&graph).unwrap()[one.index()], "/job:local/task:0/device:CPU:0");
}
